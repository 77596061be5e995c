#include "launcher/forwarded_environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr std::array<std::string_view, 9> kPrefixes = {"NCCL",  "PYTHON", "MV2",  "UCX",     "MLFLOW",
                                                       "GLOO_", "TORCH_", "OMP_", "ZERORUN_"};

bool is_name(std::string_view name) {
  const auto allowed = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::ranges::all_of(name, allowed);
}

VariableList read_file(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw UserError("cannot read the variables in " + file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return parse_environment_file(text, file);
}

}  // namespace

VariableList forwarded_variables(const std::vector<std::string>& environment) {
  VariableList forwarded;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    const bool ours = std::ranges::any_of(kPrefixes, [&](auto prefix) { return entry.starts_with(prefix); });
    if (ours && equals != std::string::npos) {
      forwarded.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return forwarded;
}

VariableList parse_environment_file(std::string_view text, const std::string& file) {
  VariableList variables;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos || line.front() == '#') continue;
    const size_t equals = line.find('=');
    const std::string name = line.substr(0, std::min(equals, line.size()));
    if (equals == std::string::npos || !is_name(name)) {
      throw UserError(file + ":" + std::to_string(number) + ": expected NAME=VALUE, found '" + line + "'");
    }
    variables.emplace_back(name, line.substr(equals + 1));
  }
  return variables;
}

VariableList read_environment_files() {
  const char* named = std::getenv("DS_ENV_FILE");
  const std::string name = named != nullptr && *named != '\0' ? named : ".deepspeed_env";
  // A path names the file itself; a name without '/' is searched for in the home folder and the working
  // folder.
  if (name.find('/') != std::string::npos) return read_file(name);
  VariableList variables;
  const char* home = std::getenv("HOME");
  for (const std::string& folder : {std::string(home != nullptr ? home : ""), std::string(".")}) {
    const std::string file = folder + "/" + name;
    if (!folder.empty() && std::filesystem::exists(file))
      variables = merge_variables(variables, read_file(file));
  }
  return variables;
}

VariableList merge_variables(VariableList first, const VariableList& second) {
  for (const auto& entry : second) {
    std::erase_if(first, [&](const auto& other) { return other.first == entry.first; });
    first.push_back(entry);
  }
  return first;
}

}  // namespace zerorun
