// What collectives and messages of one rank have taken, for comms_logger. Shared by the communicators of a
// rank; any thread. Nothing waits for it: a collective is timed from its start until the rank sees that it
// has ended, which is when the rank waits for it. So what a rank computes meanwhile counts too.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace zerorun {

class Work;

struct CommunicationLogOptions {
  std::vector<std::string> only = {};  // kinds to record, such as "all_reduce"; empty: all
  bool verbose = false;                // log each one when it has ended
  bool shows_labels = false;           // and what it is for
  bool is_timed = true;                // false: nobody sees when one ends (GPUs)
};

class CommunicationLog {
 public:
  explicit CommunicationLog(CommunicationLogOptions options) : options_(std::move(options)) {}

  /// A collective or message of `bytes`: of the whole tensor, which all ranks have a part in.
  struct Call {
    std::string kind;
    int64_t bytes = 0;
    int ranks = 1;
    std::string label;
  };
  /// Whether calls of this kind are recorded. DeepSpeed's longer names, such as all_gather_into_tensor, mean
  /// the same kinds.
  bool records(const std::string& kind) const;
  /// Returns `work`, with a record of it in this log when it has ended.
  static std::unique_ptr<Work> watch(std::shared_ptr<CommunicationLog> log, Call call,
                                     std::chrono::steady_clock::time_point begin, std::unique_ptr<Work> work);
  void add(const Call& call, std::chrono::nanoseconds time);

  /// A table with a row for each kind, number of ranks and size: count, time, mean time, and bandwidths as
  /// nccl-tests defines them. Names its columns in the first line.
  std::string table() const;

 private:
  struct Key {
    std::string kind;
    int ranks;
    int64_t bytes;
    auto operator<=>(const Key&) const = default;
  };
  struct Total {
    int64_t count = 0;
    std::chrono::nanoseconds time{};
  };

  CommunicationLogOptions options_;
  mutable std::mutex mutex_;
  std::map<Key, Total> totals_;
};

}  // namespace zerorun
