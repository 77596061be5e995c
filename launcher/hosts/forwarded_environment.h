// The variables that the launcher, like DeepSpeed's, passes on to ranks on other hosts: those of its own
// environment that belong to communication libraries and Python, and those in the file .deepspeed_env.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zerorun::launcher {

using VariableList = std::vector<std::pair<std::string, std::string>>;

/// The variables of `environment` ("NAME=value" each) whose names begin with NCCL, PYTHON, MV2, UCX or
/// MLFLOW, which DeepSpeed forwards, or with GLOO_, TORCH_, OMP_ or ZERORUN_, which ZeroRun and LibTorch
/// read. Pure.
VariableList forwarded_variables(const std::vector<std::string>& environment);

/// Parses `text`, the content of `file`: one NAME=VALUE per line. Blanks around both and quotes around the
/// whole value are removed; else values are taken literally, nothing is expanded or run, and a warning says
/// so where a shell would do that. Blank lines and lines that begin with # are skipped. Throws UserError
/// naming file and line.
VariableList parse_environment_file(std::string_view text, const std::string& file);

/// The variables of .deepspeed_env in the home folder and then in the working folder (later ones win), or of
/// the file that DS_ENV_FILE names instead. Throws UserError.
VariableList read_environment_files();

/// The variables of both lists. If both have a name, the value in `second` wins.
VariableList merge_variables(VariableList first, const VariableList& second);

}  // namespace zerorun::launcher
