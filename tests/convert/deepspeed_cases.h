// Checkpoints that DeepSpeed 0.19.8 wrote, and recorded facts about their contents (data/README.md).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace zerorun::testing {

struct DeepSpeedCase {
  std::filesystem::path folder;
  nlohmann::json facts;
  std::filesystem::path checkpoint() const { return folder / "checkpoint"; }
  std::string name() const { return facts["name"]; }
};

/// Returns the cases in data/, or in the folder that the environment variable ZERORUN_DEEPSPEED_CASES names.
inline std::vector<DeepSpeedCase> deepspeed_cases() {
  const char* const given = std::getenv("ZERORUN_DEEPSPEED_CASES");
  const std::filesystem::path folder = given ? given : ZERORUN_SOURCE_DIR "/tests/convert/data";
  std::vector<DeepSpeedCase> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path() / "case.json");
    if (file) cases.push_back({entry.path(), nlohmann::json::parse(file)});
  }
  return cases;
}

inline DeepSpeedCase deepspeed_case(const std::string& name) {
  for (DeepSpeedCase& one : deepspeed_cases()) {
    if (one.name() == name) return one;
  }
  throw std::runtime_error("no case " + name);
}

}  // namespace zerorun::testing
