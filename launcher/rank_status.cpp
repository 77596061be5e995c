#include "launcher/rank_status.h"

#include <sys/wait.h>

#include <cstring>

namespace zerorun::launcher {

bool succeeded(int wait_status) {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
}

bool was_user_mistake(int wait_status) {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 2;
}

std::string describe_end(int wait_status) {
  if (WIFEXITED(wait_status)) return "exited with code " + std::to_string(WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return "killed by signal " + std::to_string(signal) + " (" + signal_name(signal) + ")";
}

int exit_code_of(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace zerorun::launcher
