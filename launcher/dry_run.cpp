#include "launcher/dry_run.h"

#include "base/listening.h"
#include "base/processor_list.h"

namespace zerorun {

std::string describe_job(const JobEnvironment& job, int node, const std::vector<std::string>& inherited,
                         const std::vector<std::string>& arguments) {
  std::string text;
  for (int rank = 0; rank < job.placement.world_size(); ++rank) {
    const int rank_node = job.placement.node_of(rank);
    auto variables = rank_variables(inherited, job, rank);
    for (const char* later : {"ZERORUN_JOB", kListenVariable}) variables.erase(later);
    if (job.master_port == 0) variables.erase("MASTER_PORT");
    if (rank_node != node) {
      for (const char* local : {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}) variables.erase(local);
    }
    text += job.placement.nodes()[rank_node].host + ": env";
    for (const auto& [name, value] : variables) {
      if (!value) text += " -u " + name;
    }
    for (const auto& [name, value] : variables) {
      if (value) text += " " + name + "=" + shell_word(*value);
    }
    if (rank_node == node && !job.bindings.empty())
      text += " taskset -c " + processor_list(job.bindings.at(job.placement.local_rank(rank)).processors);
    for (const std::string& argument : arguments) text += " " + shell_word(argument);
    text += "\n";
  }
  return text;
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

}  // namespace zerorun
