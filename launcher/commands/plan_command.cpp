#include "launcher/commands/plan_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace zerorun::launcher {

void run_plan_command(int argc, char** argv) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = self.parent_path() / "zerorun_plan";
  std::vector<char*> arguments = {argv[0]};
  arguments.insert(arguments.end(), argv + 2, argv + argc);
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw UserError("plan: " + program + " could not be started: " + std::strerror(errno) +
                  "; it is installed beside zerorun, if ZeroRun is built with LibTorch");
}

}  // namespace zerorun::launcher
