#include "launcher/hosts/dry_run.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "base/error.h"
#include "base/listening.h"
#include "base/processor_list.h"
#include "config/check.h"

namespace zerorun::launcher {

std::string describe_job(const JobEnvironment& job, int node, const std::vector<std::string>& inherited,
                         const NodeOrder& order, const std::optional<MeshSizes>& mesh) {
  std::string command;
  if (!order.venv_script.empty()) {
    command += R"( /bin/bash -c '. "$0" && exec "$@"' )" + shell_word(order.venv_script);
  }
  for (const std::string& argument : order.arguments) command += " " + shell_word(argument);
  std::string text;
  for (int rank = 0; rank < job.placement.world_size(); ++rank) {
    const int rank_node = job.placement.node_of(rank);
    auto variables = rank_variables(inherited, job, rank);
    for (const char* later : {"ZERORUN_JOB", kListenVariable}) variables.erase(later);
    if (job.master_port == 0) variables.erase("MASTER_PORT");
    if (job.master_addr.empty()) variables.erase("MASTER_ADDR");
    if (rank_node != node) {
      for (const char* local : {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}) variables.erase(local);
    }
    text += job.placement.nodes()[rank_node].host + ": ";
    if (rank_node != node) {
      if (!order.folder.empty()) text += "cd " + shell_word(order.folder) + " && ";
      for (const auto& [name, value] : order.variables) variables.try_emplace(name, value);
    }
    text += "env";
    for (const auto& [name, value] : variables) {
      if (!value) text += " -u " + name;
    }
    for (const auto& [name, value] : variables) {
      if (value) text += " " + name + "=" + shell_word(*value);
    }
    if (rank_node == node && !job.bindings.empty())
      text += " taskset -c " + processor_list(job.bindings.at(job.placement.local_rank(rank)).processors);
    text += command;
    if (mesh) text += "  # " + describe(coordinates_of(rank, *mesh), *mesh);
    text += "\n";
  }
  return text;
}

std::optional<MeshSizes> find_mesh(const std::vector<std::string>& command, int world_size) {
  for (const std::string& word : command) {
    const std::filesystem::path file = word.substr(word.find('=') + 1);  // all of it without "="
    if (file.extension() != ".json") continue;
    try {
      const std::string text = config::read_config_file(file);
      const config::Settings settings = config::check_config(text, file.string(), {}).settings;
      if (!settings.find("zerorun.mesh")) continue;
      const auto size = [&](const char* axis) {
        return static_cast<int>(settings.get<int64_t>(std::string("zerorun.mesh.") + axis).value_or(0));
      };
      const MeshSizes sizes{.data = size("data"),
                            .tensor = size("tensor"),
                            .pipeline = size("pipeline"),
                            .replicate = std::max(size("replicate"), 1)};
      return sizes.resolved(world_size);
    } catch (const UserError&) {  // the program reports it
    }
  }
  return std::nullopt;
}

std::string shell_line(const std::vector<std::string>& words, const std::string& secret) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
  for (size_t at = line.find(secret); at != std::string::npos; at = line.find(secret)) {
    line.replace(at, secret.size(), "...");
  }
  return line;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  std::string word = "'";
  for (const char character : text)
    word += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return word + "'";
}

}  // namespace zerorun::launcher
