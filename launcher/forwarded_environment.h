// The variables of the launcher that ranks on other hosts get too: those of communication libraries and
// Python, as with DeepSpeed, and the file .deepspeed_env.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zerorun {

using VariableList = std::vector<std::pair<std::string, std::string>>;

/// Those of `environment` ("NAME=value" each) whose name begins with NCCL, PYTHON, MV2, UCX or MLFLOW, which
/// DeepSpeed forwards, or GLOO_, TORCH_, OMP_ or ZERORUN_, which ZeroRun and LibTorch read. Pure.
VariableList forwarded_variables(const std::vector<std::string>& environment);

/// Parses `text`, the content of `file`: a line NAME=VALUE each, without the file's own syntax: no quotes,
/// nothing is expanded or run. Blank lines and lines that begin with # do not count. Throws UserError naming
/// file and line. Pure.
VariableList parse_environment_file(std::string_view text, const std::string& file);

/// The variables of .deepspeed_env in the home folder and then in the working folder (later ones win), or of
/// the file that DS_ENV_FILE names instead. Throws UserError.
VariableList read_environment_files();

/// `first`, with the values of `second` where both have a name.
VariableList merge_variables(VariableList first, const VariableList& second);

}  // namespace zerorun
