#include "samples/common/csv_log.h"

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace zerorun {

CsvLog::CsvLog(const std::string& file) : file_(file), stream_(file) {
  stream_.precision(std::numeric_limits<double>::max_digits10);
  stream_ << "step,loss,grad_norm,lr,loss_scale,skipped\n";
  flush();
}

void CsvLog::write(const StepRecord& record) {
  stream_ << record.step << ',' << record.loss << ',' << record.grad_norm << ',' << record.lr << ','
          << record.loss_scale << ',' << record.skipped << '\n';
  flush();
}

void CsvLog::flush() {
  if (!stream_.flush()) throw UserError("--csv " + file_ + ": cannot be written: " + std::strerror(errno));
}

}  // namespace zerorun
