#include "comm/meeting/environment.h"

#include <charconv>
#include <cmath>
#include <system_error>

#include "base/error.h"
#include "base/route.h"
#include "comm/meeting/cluster_environment.h"
#include "comm/meeting/variables.h"

namespace zerorun {
namespace {

std::string required(const Variables& variables, const char* name) {
  if (auto value = variables.find(name)) return *value;
  throw UserError(
      std::string("environment variable ") + name +
      " is not set, though others of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are: launch "
      "with `zerorun --num_gpus N PROGRAM`, or set all five");
}

std::chrono::milliseconds seconds(const char* name, const std::string& text) {
  // Not strtod(), which reads a comma where the program's locale writes one.
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 1e9) {
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
  if (text == "two-level") return CommChoice::two_levels;
  if (text == "gloo") return CommChoice::gloo;
  throw UserError("environment variable ZERORUN_COMM=" + text + ": expected auto, shm, two-level or gloo");
}

// The name of the job. It does not contain torchrun's restart count, which may differ between the agents of
// one job.
std::string job_of_variables(const Variables& variables) {
  if (auto token = variables.find("ZERORUN_JOB")) return "zerorun " + *token;
  if (auto run = variables.find("TORCHELASTIC_RUN_ID")) return "torchrun " + *run;
  return name_of_slurm_job(variables);
}

// Returns whether all ranks are known to be on this host. A host name other than localhost does not prove it,
// because each host may resolve the name to another address.
bool is_one_host(const Environment& environment, const Variables& variables) {
  if (is_loopback(environment.master_addr)) return true;
  return variables.has("LOCAL_WORLD_SIZE") && environment.local_world_size == environment.world_size;
}

void read_torchrun(const Variables& variables, Environment& environment) {
  auto integer = [&](const char* name, int lowest, int highest) {
    return whole_number(name, required(variables, name), lowest, highest);
  };
  environment.world_size = integer("WORLD_SIZE", 1, kMaxRanks);
  environment.rank = integer("RANK", 0, environment.world_size - 1);
  environment.local_rank = integer("LOCAL_RANK", 0, environment.world_size - 1);
  environment.local_world_size = environment.world_size;
  if (variables.has("LOCAL_WORLD_SIZE")) {
    environment.local_world_size =
        integer("LOCAL_WORLD_SIZE", environment.local_rank + 1, environment.world_size);
  }
  if (environment.world_size > 1) {
    environment.master_addr = required(variables, "MASTER_ADDR");
    environment.master_port = integer("MASTER_PORT", 1, 65535);
  }
  environment.one_host = is_one_host(environment, variables);
  environment.job = job_of_variables(variables);
  environment.agent_store = variables.find("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.attempt = variables.find("TORCHELASTIC_RESTART_COUNT").value_or("0");
}

void take(const ClusterRank& place, const Variables& variables, Environment& environment) {
  environment.rank = place.rank;
  environment.world_size = place.world_size;
  environment.local_rank = place.local_rank;
  environment.local_world_size = place.local_world_size;
  environment.master_addr = place.master_addr;
  environment.master_port = place.master_port;
  environment.one_host = place.local_world_size == place.world_size;
  const auto token = variables.find("ZERORUN_JOB");
  environment.job = token ? "zerorun " + *token : place.job;
}

}  // namespace

Environment Environment::read(const Variables& variables, const HostFacts& host) {
  Environment environment;
  if (auto timeout = variables.find("ZERORUN_TIMEOUT")) {
    environment.timeout = seconds("ZERORUN_TIMEOUT", *timeout);
  }
  if (auto device = variables.find("ZERORUN_DEVICE")) environment.device = device_choice(*device);
  if (auto comm = variables.find("ZERORUN_COMM")) environment.comm = comm_choice(*comm);
  if (variables.has("RANK")) {
    read_torchrun(variables, environment);
  } else if (const auto place = read_cluster_rank(variables, host)) {
    take(*place, variables, environment);
  } else if (variables.has("WORLD_SIZE") || variables.has("LOCAL_RANK")) {
    read_torchrun(variables, environment);  // throws an error that names the missing variable
  } else {
    refuse_unknown_launcher(variables);
  }
  return environment;
}

Environment Environment::read() {
  return read(Variables::of_process(), HostFacts::of_this_host());
}

}  // namespace zerorun
