// Logs a training run to a csv file, one line per step. Owned by rank 0's main() and used by one thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace samples {

struct StepRecord {
  int64_t step = 0;   // from 0
  double loss = 0.0;  // mean over ranks and micro-steps
  double grad_norm = 0.0;
  double lr = 0.0;          // used by this step
  double loss_scale = 1.0;  // used by this step
  int64_t skipped = 0;      // steps skipped so far
};

/// Lines under the header `step,loss,grad_norm,lr,loss_scale,skipped`, with 17 significant digits.
class CsvLog {
 public:
  /// Opens the log of a run that begins with step `first`. Keeps the file's lines of earlier steps and
  /// removes all other lines. Throws UserError if the file cannot be written.
  explicit CsvLog(const std::string& file, int64_t first = 0);
  /// Appends a line, and returns when the line is in the file. Throws UserError if the file cannot be
  /// written.
  void write(const StepRecord& record);

 private:
  void flush();

  std::string file_;
  std::ofstream stream_;
};

}  // namespace samples
