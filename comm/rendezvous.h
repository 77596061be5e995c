// How ranks find each other: torchrun's environment variables, set by `zerorun` and by torchrun alike.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace zerorun {

/// What RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE and
/// ZERORUN_TIMEOUT (seconds) say. With none of RANK, WORLD_SIZE and LOCAL_RANK set: one rank.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool agent_store = false;   // torchrun's agent keeps the store: rank 0 joins it as a client
  std::string attempt = "0";  // how often the agent has restarted the ranks
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  /// Throws UserError naming the variable that is missing or malformed.
  static Environment read();
};

/// Joins the other ranks over Gloo and returns when all are there. Throws UserError (port in use, bad
/// variables) or CommError naming the ranks that did not join within the deadline.
std::shared_ptr<Communicator> connect(const Environment& environment = Environment::read());

}  // namespace zerorun
