#include "samples/common/csv_log.h"

#include <zerorun/program.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

namespace samples {
namespace {

using zerorun::UserError;

constexpr const char* kHeader = "step,loss,grad_norm,lr,loss_scale,skipped";

// Returns the lines of the csv log `file` for steps before `first`; empty if `file` is not a csv log. A pipe
// is not opened for reading: that would wait until somebody writes into it.
std::string earlier_lines(const std::string& file, int64_t first) {
  std::string line;
  std::string lines;
  std::error_code error;
  if (first == 0 || !std::filesystem::is_regular_file(file, error)) return lines;
  std::ifstream stream(file);
  if (!std::getline(stream, line) || line != kHeader) return lines;
  while (std::getline(stream, line) && !stream.eof() && std::atoll(line.c_str()) < first)
    lines += line + "\n";
  return lines;
}

}  // namespace

CsvLog::CsvLog(const std::string& file, int64_t first) : file_(file) {
  const std::string earlier = earlier_lines(file, first);
  // If this process is killed meanwhile, no earlier line may be lost.
  const std::string opened = earlier.empty() ? file : file + ".partial";
  stream_.open(opened);
  stream_.precision(std::numeric_limits<double>::max_digits10);
  stream_ << kHeader << '\n' << earlier;
  flush();
  std::error_code error;
  if (opened != file) std::filesystem::rename(opened, file, error);
  if (error) throw UserError("--csv " + file + ": cannot be written: " + error.message());
}

void CsvLog::write(const StepRecord& record) {
  stream_ << record.step << ',' << record.loss << ',' << record.grad_norm << ',' << record.lr << ','
          << record.loss_scale << ',' << record.skipped << '\n';
  flush();
}

void CsvLog::flush() {
  if (!stream_.flush()) throw UserError("--csv " + file_ + ": cannot be written: " + std::strerror(errno));
}

}  // namespace samples
