#include "benchmarks/local_ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/program.h"

namespace zerorun {
namespace {

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = descriptor >= 0 &&
                     bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (descriptor >= 0) close(descriptor);
  if (!bound) throw Error("no free port on the loopback interface");
  return ntohs(address.sin_port);
}

}  // namespace

int run_local_ranks(int world_size, const std::function<int()>& body) {
  setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
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
      const int code = run_program(body);
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
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
