#include "base/error.h"

namespace zerorun {

void fail_check(const char* condition, const char* file, int line, const std::string& detail) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": broken invariant '" + condition +
                      "': " + detail + " (a defect in ZeroRun: please report it)");
}

}  // namespace zerorun
