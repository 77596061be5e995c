// Finds the program that the ranks run; error messages name a remedy. Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace zerorun::launcher {

/// The file to run: `program` itself if it has a '/', else the first match in $PATH. Throws UserError.
std::string find_program(const std::string& program);

/// The argv that runs `command`, a program and its arguments. If `module` is set, or the program ends in .py
/// and `no_python` is not set, `python` runs it: `python3 -u [-m] command...`. Throws UserError if the script
/// cannot be read.
std::vector<std::string> program_arguments(std::vector<std::string> command, bool module, bool no_python,
                                           const std::string& python = "python3");

/// The argv that runs `command` in the same way, but so that `import deepspeed` finds the Python package
/// zerorun (its module zerorun.as_deepspeed, which finds programs that are no scripts itself). With
/// `pass_local_rank` a script gets
/// --local_rank=N. Throws UserError if the script cannot be read.
std::vector<std::string> arguments_as_deepspeed(const std::vector<std::string>& command, bool module,
                                                bool no_python, bool pass_local_rank,
                                                const std::string& python = "python3");

/// The Python that runs scripts. If the launcher, whose file is `launcher`, is installed in a virtual
/// environment, this is the environment's Python, as with torchrun. Otherwise it is "python3", which is
/// looked up in $PATH.
std::string python_of(const std::filesystem::path& launcher);

}  // namespace zerorun::launcher
