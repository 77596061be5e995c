#include "launcher/program_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <system_error>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

bool is_runnable_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void refuse(const std::string& program, const std::string& reason) {
  throw UserError("cannot run '" + program + "': " + reason);
}

void check_program_file(const std::string& program) {
  struct stat info {};
  if (::stat(program.c_str(), &info) != 0) {
    if (errno == ENOENT) refuse(program, "no such file: build it first, or correct the path");
    refuse(program, std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) refuse(program, "it is a directory: name the program inside it");
  if (!S_ISREG(info.st_mode)) refuse(program, "it is not a regular file");
  if (::access(program.c_str(), X_OK) != 0) refuse(program, "it is not executable: chmod +x " + program);
}

// Whether Python runs the program, as a script. Throws UserError if the script cannot be read.
bool is_script(const std::string& program, bool module, bool no_python) {
  const bool script = !module && !no_python && program.ends_with(".py");
  if (script && ::access(program.c_str(), R_OK) != 0) {
    refuse(program, std::string(std::strerror(errno)) + ": correct the path of the script");
  }
  return script;
}

}  // namespace

std::string find_program(const std::string& program) {
  if (program.empty()) refuse(program, "the name of the program is empty");
  if (program.find('/') != std::string::npos) {
    check_program_file(program);
    return program;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
    if (is_runnable_file(candidate)) return candidate;
  }
  if (is_runnable_file(program))
    refuse(program, "it is not in PATH: write ./" + program + " for the one in this folder");
  refuse(program, "no program of this name in PATH: give its path, such as build/bin/" + program);
}

std::vector<std::string> program_arguments(std::vector<std::string> command, bool module, bool no_python,
                                           const std::string& python) {
  if (!is_script(command.front(), module, no_python) && !module) return command;
  // -u: a rank's lines appear when they are printed, not when a buffer of Python is full.
  std::vector<std::string> arguments = {python, "-u"};
  if (module) arguments.emplace_back("-m");
  arguments.insert(arguments.end(), command.begin(), command.end());
  return arguments;
}

std::vector<std::string> arguments_as_deepspeed(const std::vector<std::string>& command, bool module,
                                                bool no_python, bool pass_local_rank,
                                                const std::string& python) {
  is_script(command.front(), module, no_python);
  std::vector<std::string> arguments = {python, "-u", "-m", "zerorun.as_deepspeed"};
  if (module) arguments.emplace_back("-m");
  if (no_python) arguments.emplace_back("--no_python");
  if (pass_local_rank) arguments.emplace_back("--local_rank");
  arguments.insert(arguments.end(), command.begin(), command.end());
  return arguments;
}

std::string python_of(const std::filesystem::path& launcher) {
  const std::filesystem::path folder = launcher.parent_path();
  const std::string python = folder / "python3";
  std::error_code error;
  const bool is_environment = std::filesystem::exists(folder.parent_path() / "pyvenv.cfg", error);
  return is_environment && is_runnable_file(python) ? python : "python3";
}

}  // namespace zerorun::launcher
