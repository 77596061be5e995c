// Helpers for tests that run the sample programs as a user does.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

inline const std::string kBin = ZERORUN_BINARY_DIR "/bin/";
inline const std::string kTiny = " --layers 1 --hidden 16 --heads 2 --seq 16 ";

struct Outcome {
  int exit_code;  // -1: a signal ended the command
  std::string out;
  std::string err;
};

/// Runs `command` in a shell. Its output goes through files in `folder`.
Outcome run(const TemporaryFolder& folder, const std::string& command);

std::string write_config(const TemporaryFolder& folder, int micro_batch, int accumulation,
                         const std::string& zero = R"({"stage": 2})");
/// Writes a text of 1,000 bytes, which are 62 samples of 16 bytes, and returns its path.
std::string write_text(const TemporaryFolder& folder);
/// Reads the file that `gpt2 --csv` writes: for each step, its values by column name.
std::vector<std::map<std::string, double>> read_csv(const std::filesystem::path& file);
std::vector<double> column(const std::vector<std::map<std::string, double>>& rows, const std::string& name);
int count(const std::string& text, const std::string& part);

}  // namespace zerorun::testing
