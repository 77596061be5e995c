#include "launcher/hosts/forwarded_environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/small_file.h"

namespace zerorun::launcher {
namespace {

constexpr size_t kMostListBytes = 1 << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr const char* kBlanks = " \t\r\n\v\f";
constexpr std::array<std::string_view, 9> kPrefixes = {"NCCL",  "PYTHON", "MV2",  "UCX",     "MLFLOW",
                                                       "GLOO_", "TORCH_", "OMP_", "ZERORUN_"};

bool is_name(std::string_view name) {
  const auto allowed = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::ranges::all_of(name, allowed);
}

VariableList read_file(const std::string& file) {
  const SmallFile read = read_small_file(file, kMostListBytes);
  if (!read.problem.empty()) throw UserError("cannot read the variables in " + file + ": " + read.problem);
  return parse_environment_file(read.text, file);
}

std::string without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlanks) - first + 1));
}

// Removes quotes around the whole value, as the shell does to which DeepSpeed gives it.
std::string unquoted(const std::string& value) {
  const bool quoted = value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
                      value.find(value.front(), 1) == value.size() - 1;
  return quoted ? value.substr(1, value.size() - 2) : value;
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
    if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    line = without_blanks(line);
    if (line.empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    const std::string name = without_blanks(line.substr(0, std::min(equals, line.size())));
    if (equals == std::string::npos || !is_name(name)) {
      throw UserError(file + ":" + std::to_string(number) + ": expected NAME=VALUE, found '" + line + "'");
    }
    const std::string value = unquoted(without_blanks(line.substr(equals + 1)));
    if (value.find_first_of("$`\"'") != std::string::npos) {
      log_warning(file + ":" + std::to_string(number) + ": the value of " + name +
                  " is taken as it is: quotes belong to it, and nothing is expanded");
    }
    variables.emplace_back(name, value);
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
  bool found = false;
  const char* home = std::getenv("HOME");
  for (const std::string& folder : {std::string(home != nullptr ? home : ""), std::string(".")}) {
    const std::string file = folder + "/" + name;
    std::error_code error;  // a home folder that this user may not search has no such file either
    if (folder.empty() || !std::filesystem::exists(file, error)) continue;
    variables = merge_variables(variables, read_file(file));
    found = true;
  }
  if (named != nullptr && *named != '\0' && !found) {
    throw UserError("DS_ENV_FILE=" + name +
                    ": there is no such file in the home folder or the working folder");
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

}  // namespace zerorun::launcher
