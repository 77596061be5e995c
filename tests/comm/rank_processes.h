// Ranks as forked processes. The test program itself must have no other threads when it forks, so it must
// never compute with LibTorch.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace zerorun::testing {

struct Ending {
  int status = 0;      // as waitpid() returns it
  std::string text;    // what the body returned, or "CommError: ..." (UserError, exception) for what it threw
  double seconds = 0;  // from the fork to the end
};

using ProcessBody = std::function<std::string(int index)>;

/// Runs `body` in `count` processes. When the first `awaited` of them (all: -1) have ended, or after `limit`,
/// the others are killed.
std::vector<Ending> run_processes(int count, const ProcessBody& body, int awaited = -1,
                                  std::chrono::seconds limit = std::chrono::seconds(120));

/// A TCP port of 127.0.0.1 without a listener.
int free_port();

/// Listens on a port of its own for its lifetime.
class OccupiedPort {
 public:
  OccupiedPort();
  ~OccupiedPort();
  OccupiedPort(const OccupiedPort&) = delete;
  OccupiedPort& operator=(const OccupiedPort&) = delete;
  int port() const { return port_; }

 private:
  int socket_;
  int port_;
};

/// Sets the variables of one rank as the launcher does for ranks on the CPU.
void set_rank_variables(int rank, int world_size, int port, std::chrono::milliseconds timeout);

}  // namespace zerorun::testing
