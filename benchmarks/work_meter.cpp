#include "benchmarks/work_meter.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>

namespace zerorun {

WorkMeter::WorkMeter() {
  perf_event_attr wanted{};
  wanted.size = sizeof wanted;
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.config = PERF_COUNT_HW_INSTRUCTIONS;
  wanted.inherit = 1;  // counts threads that start later, too
  wanted.exclude_kernel = 1;
  wanted.exclude_hv = 1;
  counter_ = static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

WorkMeter::~WorkMeter() {
  if (counter_ >= 0) close(counter_);
}

WorkDone WorkMeter::so_far() const {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  WorkDone done{.cpu_seconds = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9,
                .instructions = {}};
  uint64_t count = 0;
  if (counter_ >= 0 && read(counter_, &count, sizeof count) == sizeof count) {
    done.instructions = static_cast<double>(count);
  }
  return done;
}

}  // namespace zerorun
