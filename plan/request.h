// The command line of `zerorun plan`, and the configuration that it names. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "config/config_types.h"

namespace zerorun {

struct PlanRequest {
  std::string config;
  std::string model;  // a folder or file; empty: `parameters`
  int64_t parameters = 0;
  int world_size = 1;
  int hosts = 1;
  bool on_gpu = false;
  std::optional<int64_t> memory;  // bytes of each rank
  std::optional<double> step_seconds;
  std::optional<double> endurance;  // bytes
  bool with_others = true;          // other numbers of ranks
  bool json = false;
};

/// Absent if the help was asked for, which is printed. Throws UserError for a mistake on the command line.
std::optional<PlanRequest> parse_plan_request(int argc, const char* const* argv);

/// A number of bytes such as 24G, 80GiB, 600TB or 1e9. K, M, G and T are powers of `base`, which is 1000 or
/// 1024; with B after them, of 1000, and with iB, of 1024. Throws UserError, which names `option`.
double bytes_in(const std::string& text, int base, const std::string& option);

/// A configuration's text as JSON, without its comments. Throws UserError if it is no configuration.
nlohmann::ordered_json as_json(const std::string& text, const std::string& origin);

/// Reads a configuration for a plan: values that only the program knows, and on which no size depends, need
/// not be known. Without an optimizer it gets AdamW. Throws UserError.
Config planned_config(const std::string& text, const std::string& origin, int world_size,
                      std::optional<int64_t> hidden_size);

}  // namespace zerorun
