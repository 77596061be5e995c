#include "comm/communication_log.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "comm/communicator.h"

namespace zerorun {
namespace {

using Clock = std::chrono::steady_clock;

class WatchedWork : public Work {
 public:
  WatchedWork(std::shared_ptr<CommunicationLog> log, CommunicationLog::Call call, Clock::time_point begin,
              std::unique_ptr<Work> work)
      : log_(std::move(log)), call_(std::move(call)), begin_(begin), work_(std::move(work)) {}

  void wait() override {
    work_->wait();
    log_->add(call_, Clock::now() - begin_);
  }

 private:
  std::shared_ptr<CommunicationLog> log_;
  CommunicationLog::Call call_;
  Clock::time_point begin_;
  std::unique_ptr<Work> work_;
};

// The part of `bytes` that crosses a rank's link in the best case: "busbw" of nccl-tests.
double bus_factor(const std::string& kind, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (kind == name_of(Collective::all_reduce)) return 2 * others;
  const bool is_sliced =
      kind == name_of(Collective::all_gather) || kind == name_of(Collective::reduce_scatter);
  return is_sliced ? others : 1;
}

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// GB/s of 10^9 bytes.
double bandwidth(double bytes, std::chrono::nanoseconds time) {
  return time.count() > 0 ? bytes / static_cast<double>(time.count()) : 0;
}

}  // namespace

bool CommunicationLog::records(const std::string& kind) const {
  return options_.only.empty() ||
         std::ranges::any_of(options_.only, [&](const std::string& only) { return only.starts_with(kind); });
}

std::unique_ptr<Work> CommunicationLog::watch(std::shared_ptr<CommunicationLog> log, Call call,
                                              Clock::time_point begin, std::unique_ptr<Work> work) {
  return std::make_unique<WatchedWork>(std::move(log), std::move(call), begin, std::move(work));
}

void CommunicationLog::add(const Call& call, std::chrono::nanoseconds time) {
  {
    const std::lock_guard lock(mutex_);
    Total& total = totals_[{call.kind, call.ranks, call.bytes}];
    ++total.count;
    total.time += time;
  }
  if (!options_.verbose) return;
  char line[128];
  std::snprintf(line, sizeof line, " on %d ranks, %lld bytes", call.ranks,
                static_cast<long long>(call.bytes));
  std::string text = call.kind + (options_.shows_labels ? " of " + call.label : "") + line;
  if (options_.is_timed) {
    std::snprintf(line, sizeof line, ": %.3f ms, %.3f GB/s", milliseconds(time),
                  bandwidth(static_cast<double>(call.bytes), time));
    text += line;
  }
  log_info(text);
}

std::string CommunicationLog::table() const {
  const std::lock_guard lock(mutex_);
  char line[200];
  std::snprintf(line, sizeof line, "%-16s %6s %14s %10s %12s %12s %12s %12s", "operation", "ranks", "bytes",
                "count", "total ms", "mean ms", "algbw GB/s", "busbw GB/s");
  std::string text = line;
  for (const auto& [key, total] : totals_) {
    std::snprintf(line, sizeof line, "\n%-16s %6d %14lld %10lld", key.kind.c_str(), key.ranks,
                  static_cast<long long>(key.bytes), static_cast<long long>(total.count));
    text += line;
    if (!options_.is_timed) continue;
    const double whole = milliseconds(total.time);
    const double rate = bandwidth(static_cast<double>(key.bytes * total.count), total.time);
    std::snprintf(line, sizeof line, " %12.3f %12.3f %12.3f %12.3f", whole,
                  whole / static_cast<double>(total.count), rate, rate * bus_factor(key.kind, key.ranks));
    text += line;
  }
  return text;
}

}  // namespace zerorun
