// Runs this launcher again as a child process and collects what it prints. One thread waits for it; several
// may run at once.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace zerorun::launcher {

struct CapturedRun {
  int wait_status = 0;     // from waitpid()
  bool timed_out = false;  // it ran longer than `limit` and was ended
  std::string out, err;
};

/// `arguments`: without the program's name. `environment` ("NAME=value" each): absent means this process's.
/// `meanwhile` is called several times a second. After `limit` the child is ended by SIGTERM, and some
/// seconds later by SIGKILL. A child that even SIGKILL does not end, because it waits in the kernel, is
/// abandoned after two seconds. Throws Error if the system is out of processes or descriptors.
CapturedRun run_launcher(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
                         const std::optional<std::vector<std::string>>& environment = std::nullopt,
                         const std::function<void()>& meanwhile = {});

}  // namespace zerorun::launcher
