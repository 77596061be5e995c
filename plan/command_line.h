// The command line of `zerorun plan`. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/request.h"

namespace zerorun {

/// What zerorun_plan is asked for.
struct PlanCommand {
  PlanRequest request;
  std::string config;
  std::string model;  // a folder or file; empty: `parameters`
  int64_t parameters = 0;
};

/// Absent if the help was asked for, which is printed. Throws UserError for a mistake on the command line.
std::optional<PlanCommand> parse_plan_command(int argc, const char* const* argv);

/// A number of bytes such as 24G, 80GiB, 600TB or 1e9. K, M, G and T are powers of `base`, which is 1000 or
/// 1024; with B after them, of 1000, and with iB, of 1024. Throws UserError, which names `option`.
double bytes_in(const std::string& text, int base, const std::string& option);

}  // namespace zerorun
