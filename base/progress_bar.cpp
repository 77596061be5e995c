#include "base/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace zerorun {
namespace {

constexpr std::chrono::seconds kPatience(2);
constexpr std::chrono::milliseconds kInterval(100);
constexpr int kWidth = 40;

}  // namespace

// Under the launcher this process writes to a pipe. The launcher sets ZERORUN_TERMINAL to 1 if its own output
// is a terminal.
bool stdout_is_terminal() {
  const char* variable = std::getenv("ZERORUN_TERMINAL");
  return variable != nullptr ? std::string_view(variable) == "1" : ::isatty(STDOUT_FILENO) == 1;
}

ProgressBar::ProgressBar(std::string what, int64_t total, bool shows)
    : what_(std::move(what)),
      total_(std::max<int64_t>(total, 1)),
      shows_(shows && stdout_is_terminal()),
      next_(Clock::now() + kPatience) {}

ProgressBar::~ProgressBar() {
  if (is_shown_) std::printf("\n");
}

void ProgressBar::show(int64_t done) {
  done_ = done;
  if (!shows_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  is_shown_ = true;
  const double share = std::min(static_cast<double>(done) / static_cast<double>(total_), 1.0);
  const auto filled = static_cast<size_t>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::printf("\r%s [%s] %3.0f %%", what_.c_str(), bar.c_str(), 100 * share);
  std::fflush(stdout);
}

}  // namespace zerorun
