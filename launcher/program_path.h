// Finds the program that the ranks run; error messages name a remedy. Any thread may call.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// The file to run: `program` itself if it has a '/', else the first match in $PATH. Throws UserError.
std::string find_program(const std::string& program);

/// The argv that runs `command`, a program and its arguments. If `module` is set, or the program ends in .py
/// and `no_python` is not set, python3 runs it: `python3 -u [-m] command...`. Throws UserError if the script
/// cannot be read.
std::vector<std::string> program_arguments(std::vector<std::string> command, bool module, bool no_python);

}  // namespace zerorun
