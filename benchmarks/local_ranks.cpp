#include "benchmarks/local_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/listening.h"
#include "base/program.h"

namespace zerorun {
namespace {

// Lets rank 0 inherit the listening socket, as the launcher does.
void hand_down(UniqueFd socket) {
  const int fd = socket.release();
  setenv(kListenVariable, std::to_string(fd).c_str(), 1);
  fcntl(fd, F_SETFD, 0);
}

}  // namespace

int run_local_ranks(int world_size, const std::function<int()>& body) {
  setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  ListeningSocket meeting = listen_on("127.0.0.1", 0);
  setenv("MASTER_PORT", std::to_string(meeting.port).c_str(), 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  std::fflush(nullptr);

  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw Error("fork failed");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      if (rank == 0) hand_down(std::move(meeting.fd));
      meeting.fd.reset();
      const int code = run_program(body);
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
  meeting.fd.reset();
  int result = 0;
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    if (wait(&status) < 0) throw Error("cannot wait for the ranks");
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 || result != 0) continue;
    result = code;
    for (pid_t child : children) kill(child, SIGTERM);
  }
  return result;
}

}  // namespace zerorun
