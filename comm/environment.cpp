#include "comm/environment.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/error.h"

namespace zerorun {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int integer(const char* name, const std::string& text, int lowest, int highest) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest) {
    throw UserError(std::string("environment variable ") + name + "=" + text +
                    ": expected a whole number from " + std::to_string(lowest) + " to " +
                    std::to_string(highest));
  }
  return value;
}

std::string required(const char* name) {
  if (auto value = variable(name)) return *value;
  throw UserError(
      std::string("environment variable ") + name +
      " is not set, though others of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are: launch "
      "with `zerorun --num_gpus N PROGRAM`, or set all five");
}

std::chrono::milliseconds seconds(const char* name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size() || !(value > 0) || value > 1e9) {
    throw UserError(std::string("environment variable ") + name + "=" + text +
                    ": expected seconds, more than 0");
  }
  return std::chrono::milliseconds(std::llround(std::ceil(value * 1000)));
}

DeviceChoice device_choice(const std::string& text) {
  if (text == "auto") return DeviceChoice::automatic;
  if (text == "cpu") return DeviceChoice::cpu;
  if (text == "cuda") return DeviceChoice::cuda;
  throw UserError("environment variable ZERORUN_DEVICE=" + text + ": expected auto, cpu or cuda");
}

CommChoice comm_choice(const std::string& text) {
  if (text == "auto") return CommChoice::automatic;
  if (text == "shm") return CommChoice::shared_memory;
  if (text == "gloo") return CommChoice::gloo;
  throw UserError("environment variable ZERORUN_COMM=" + text + ": expected auto, shm or gloo");
}

// Leaves out torchrun's restart count: the agents of one job may count differently.
std::string job_of_variables() {
  if (auto token = variable("ZERORUN_JOB")) return "zerorun " + *token;
  if (auto run = variable("TORCHELASTIC_RUN_ID")) return "torchrun " + *run;
  if (auto job = variable("SLURM_JOB_ID")) {
    return "slurm " + *job + " " + variable("SLURM_STEP_ID").value_or("") + " " +
           variable("SLURM_RESTART_COUNT").value_or("");
  }
  return "";
}

// A host name may resolve to another address on other hosts, and without LOCAL_WORLD_SIZE ranks may be on
// other hosts.
bool is_one_host(const Environment& environment) {
  const std::string& address = environment.master_addr;
  if (address == "localhost" || address == "::1" || address.starts_with("127.")) return true;
  return variable("LOCAL_WORLD_SIZE") && environment.local_world_size == environment.world_size;
}

}  // namespace

Environment Environment::read() {
  Environment environment;
  if (auto timeout = variable("ZERORUN_TIMEOUT")) environment.timeout = seconds("ZERORUN_TIMEOUT", *timeout);
  if (auto device = variable("ZERORUN_DEVICE")) environment.device = device_choice(*device);
  if (auto comm = variable("ZERORUN_COMM")) environment.comm = comm_choice(*comm);
  if (!variable("RANK") && !variable("WORLD_SIZE") && !variable("LOCAL_RANK")) return environment;

  constexpr int kMaxRanks = 1 << 20;
  environment.world_size = integer("WORLD_SIZE", required("WORLD_SIZE"), 1, kMaxRanks);
  environment.rank = integer("RANK", required("RANK"), 0, environment.world_size - 1);
  environment.local_rank = integer("LOCAL_RANK", required("LOCAL_RANK"), 0, environment.world_size - 1);
  environment.local_world_size = environment.world_size;
  if (auto local = variable("LOCAL_WORLD_SIZE")) {
    environment.local_world_size =
        integer("LOCAL_WORLD_SIZE", *local, environment.local_rank + 1, environment.world_size);
  }
  if (environment.world_size > 1) {
    environment.master_addr = required("MASTER_ADDR");
    environment.master_port = integer("MASTER_PORT", required("MASTER_PORT"), 1, 65535);
  }
  environment.one_host = is_one_host(environment);
  environment.job = job_of_variables();
  environment.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.attempt = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return environment;
}

}  // namespace zerorun
