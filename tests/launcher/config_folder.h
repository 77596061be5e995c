// A folder of configurations in which `zerorun config` runs, and its output.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "tests/launcher/command_folder.h"

namespace zerorun::testing {

inline constexpr char kClean[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 3,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
  "zero_optimization": {"stage": 2}
}
)";
inline constexpr char kWarned[] = R"({
  "train_micro_batch_size_per_gpu": "2"
}
)";
inline constexpr char kRefused[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_cliping": 1.0,
	"zero_optimization": {"stage": 4}
}
)";

/// A folder of configurations in which zerorun runs.
class ConfigFolder : public CommandFolder {
 public:
  ConfigFolder() {
    write("clean.json", kClean);
    write("warned.json", kWarned);
    write("refused.json", kRefused);
  }

  Outcome config(const std::string& arguments) const { return run("config " + arguments); }
};

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The first line of each message of `severity` ("error", "warning" or "note"), without the quoted lines of
/// the file and the summary.
inline std::vector<std::string> headlines(const std::string& out, const std::string& severity) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(out)) {
    if (line.find(": " + severity + ": ") != std::string::npos) found.push_back(line);
  }
  return found;
}

}  // namespace zerorun::testing
