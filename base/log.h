// Log lines of the runtime, on stderr. Thread-safe. Callers decide which ranks log: usually rank 0 alone.
#pragma once

#include <string>

namespace zerorun {

void log_info(const std::string& message);
void log_warning(const std::string& message);

}  // namespace zerorun
