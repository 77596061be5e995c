#include "launcher/hosts/gpu_question.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/cuda_driver.h"
#include "base/error.h"
#include "base/gpu_presence.h"
#include "base/nccl_variables.h"
#include "doctor/gpus.h"
#include "launcher/captured_run.h"
#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

using nlohmann::json;

constexpr char kQuestion[] = "--ask_gpus";
constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";
// The limits of the wait for the driver, in seconds; between them the job's --timeout applies. Without
// persistence mode the driver first initializes every GPU, about a second each.
constexpr double kShortestWait = 5;
constexpr double kLongestWait = 60;
constexpr char kOrCpu[] = "--device cpu (or ZERORUN_DEVICE=cpu) trains on the CPU";

// The value of a variable, as the ranks will find it; null if it is not set.
const char* value_in(const std::vector<std::string>& environment, const std::string& name) {
  const auto entry = std::ranges::find_if(
      environment, [&](const std::string& text) { return text.starts_with(name + "="); });
  return entry == environment.end() ? nullptr : entry->c_str() + name.size() + 1;
}

GpuAnswer ask_driver(int ranks) {
  GpuAnswer answer;
  answer.driver = has_cuda_driver();
  answer.expected = !hides_all_gpus(std::getenv(kVisible)) && has_gpus(answer.driver);
  if (!answer.driver && !answer.expected) return answer;
  answer.usable = count_usable_gpus(answer.reason, &answer.found);
  if (answer.usable >= ranks || (answer.found == 0 && !answer.expected)) return answer;
  const std::vector<doctor::Gpu> gpus = doctor::read_gpus().gpus;
  for (size_t number = 0; number < gpus.size(); ++number) {
    if (!gpus[number].error.empty()) answer.silent.push_back("GPU " + std::to_string(number));
  }
  return answer;
}

std::string to_text(const GpuAnswer& answer) {
  const json object = {{"driver", answer.driver}, {"expected", answer.expected}, {"found", answer.found},
                       {"usable", answer.usable}, {"reason", answer.reason},     {"silent", answer.silent}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

GpuAnswer answer_in(const std::string& text) {
  const json object = json::parse(text);
  return {.driver = object.at("driver"),
          .expected = object.at("expected"),
          .found = object.at("found"),
          .usable = object.at("usable"),
          .reason = object.at("reason"),
          .silent = object.at("silent")};
}

std::string count_of(int number, const std::string& one, const std::string& many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

// Explains why there are fewer GPUs than ranks, in brackets; empty if nothing is known.
std::string explanation(const GpuAnswer& answer, const GpuDemand& demand) {
  if (!answer.silent.empty()) {
    std::string names;
    for (const std::string& name : answer.silent) names += (names.empty() ? "" : ", ") + name;
    return " (" + names + (answer.silent.size() == 1 ? " does" : " do") + " not answer)";
  }
  return demand.visible.empty() ? "" : " (" + std::string(kVisible) + "=" + demand.visible + ")";
}

GpuAnswer ask(const std::vector<std::string>& environment, int ranks, double timeout_seconds,
              const std::function<void()>& meanwhile) {
  const auto wait = static_cast<int>(std::clamp(timeout_seconds, kShortestWait, kLongestWait));
  const CapturedRun run =
      run_launcher({kQuestion, std::to_string(ranks)}, std::chrono::seconds(wait), environment, meanwhile);
  if (run.timed_out) {
    throw UserError("the NVIDIA driver has not answered for " + std::to_string(wait) +
                    " s (look for a broken GPU in `dmesg`): " + kOrCpu);
  }
  try {
    return answer_in(run.out);
  } catch (const json::exception&) {
    const std::string how = succeeded(run.wait_status) ? "no answer" : describe_end(run.wait_status);
    throw UserError("asking the NVIDIA driver for its GPUs failed: " + how +
                    (run.err.empty() ? "" : ", " + run.err) + ": " + kOrCpu);
  }
}

}  // namespace

std::string refusal(const GpuAnswer& answer, const GpuDemand& demand) {
  if (answer.usable >= demand.ranks || (answer.usable > 0 && demand.may_share)) return "";
  if (answer.usable > 0) {
    const std::string fewer = demand.slots_named ? "name " + count_of(answer.usable, "slot", "slots")
                                                 : "--num_gpus " + std::to_string(answer.usable);
    return count_of(demand.ranks, "rank", "ranks") + ", " +
           count_of(answer.usable, "usable GPU", "usable GPUs") + explanation(answer, demand) + ": " + fewer +
           ", or --device cpu";
  }
  if (answer.found == 0 && !answer.expected) return "";
  return count_of(demand.ranks, "rank", "ranks") + ", no usable GPU" + explanation(answer, demand) + ": " +
         answer.reason + ": " + kOrCpu;
}

bool is_gpu_question(int argc, const char* const* argv) {
  return argc == 3 && argv[1] == std::string_view(kQuestion);
}

int run_gpu_question(int, const char* const* argv) {
  std::puts(to_text(ask_driver(std::atoi(argv[2]))).c_str());
  return 0;
}

int check_gpus(const NodeOrder& order, const ThisMachine& machine, const std::vector<std::string>& inherited,
               const std::function<void()>& meanwhile) {
  const char* device = order.device.empty() ? value_in(inherited, "ZERORUN_DEVICE") : order.device.c_str();
  if (device != nullptr && device == std::string_view("cpu")) return 0;
  std::vector<std::string> environment = inherited;
  const std::vector<int>& slots = order.nodes[order.node].slots;
  const std::string ours = visible_devices(order.slots_named, slots, machine);
  if (!ours.empty()) {
    std::erase_if(environment,
                  [](const std::string& entry) { return entry.starts_with(std::string(kVisible) + "="); });
    environment.push_back(kVisible + ("=" + ours));
  }
  const int ranks = static_cast<int>(slots.size());
  const GpuAnswer answer = ask(environment, ranks, order.timeout_seconds, meanwhile);
  // --venv_script may add the driver's library to the search path.
  if (!answer.driver && !order.venv_script.empty()) return 0;
  const char* sharing = value_in(inherited, kNcclSharedGpus);
  const char* visible = order.slots_named ? nullptr : value_in(inherited, kVisible);
  const std::string obstacle = refusal(answer, {.ranks = ranks,
                                                .may_share = sharing != nullptr && std::atoi(sharing) != 0,
                                                .slots_named = order.slots_named,
                                                .visible = visible != nullptr ? visible : ""});
  if (!obstacle.empty()) throw UserError(obstacle);
  return answer.usable;
}

}  // namespace zerorun::launcher
