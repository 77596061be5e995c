// Runs ranks as forked processes. The test program must have a single thread when it forks. So it must never
// compute with LibTorch, which starts threads.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace zerorun::testing {

struct Ending {
  int status = 0;      // as waitpid() returns it
  std::string text;    // the body's result, or "CommError: ", "UserError: " or "exception: " and the message
  double seconds = 0;  // from the fork to the end of the process; 0 if it was not awaited
};

using ProcessBody = std::function<std::string(int index)>;

struct ProcessJob {
  int count = 0;
  ProcessBody body;
  int awaited = -1;  // waits for the first so many processes of the job; -1: for all
};

/// Runs the processes of several jobs at the same time: jobs that wait for deadlines do not take as long as
/// one after the other. Waits for the awaited processes of all jobs, but not longer than `limit`. Then kills
/// those that still run. Returns the endings of each job.
std::vector<std::vector<Ending>> run_jobs(const std::vector<ProcessJob>& jobs,
                                          std::chrono::seconds limit = std::chrono::seconds(120));

/// Runs one job.
std::vector<Ending> run_processes(int count, const ProcessBody& body, int awaited = -1,
                                  std::chrono::seconds limit = std::chrono::seconds(120));

/// Returns a TCP port of 127.0.0.1 on which nobody listens. It stays reserved while the test program
/// runs, or until it has asked for 64 more: two jobs that got one port would meet each other.
int free_port();

/// Listens on a free port of 127.0.0.1 until it is destroyed.
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

/// Sets the environment variables of one rank as the launcher does for ranks on the CPU, all of them on this
/// host, or `per_host` on each.
void set_rank_variables(int rank, int world_size, int port, std::chrono::milliseconds timeout,
                        int per_host = 0);

}  // namespace zerorun::testing
