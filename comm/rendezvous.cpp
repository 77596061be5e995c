#include "comm/rendezvous.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "comm/gloo_communicator.h"
#include "comm/thread_communicator.h"

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

}  // namespace

Environment Environment::read() {
  Environment environment;
  if (auto timeout = variable("ZERORUN_TIMEOUT")) environment.timeout = seconds("ZERORUN_TIMEOUT", *timeout);
  if (!variable("RANK") && !variable("WORLD_SIZE") && !variable("LOCAL_RANK")) return environment;

  constexpr int kMaxRanks = 1 << 20;
  environment.world_size = integer("WORLD_SIZE", required("WORLD_SIZE"), 1, kMaxRanks);
  environment.rank = integer("RANK", required("RANK"), 0, environment.world_size - 1);
  environment.local_rank = integer("LOCAL_RANK", required("LOCAL_RANK"), 0, environment.world_size - 1);
  if (environment.world_size > 1) {
    environment.master_addr = required("MASTER_ADDR");
    environment.master_port = integer("MASTER_PORT", required("MASTER_PORT"), 1, 65535);
  }
  environment.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.attempt = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return environment;
}

std::shared_ptr<Communicator> connect(const Environment& environment) {
  if (environment.world_size == 1) return make_thread_communicators(1, environment.timeout).front();
  return make_gloo_communicator(environment);
}

}  // namespace zerorun
