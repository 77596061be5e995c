// A collective or message that the timeline shows, from its start until its rank sees that it has ended.
#pragma once

#include <memory>

#include "base/timeline.h"
#include "comm/communicator.h"

namespace zerorun {

class RecordedWork : public Work {
 public:
  RecordedWork(TimelineTransfer transfer, std::unique_ptr<Work> work)
      : transfer_(transfer), work_(std::move(work)) {}

  ~RecordedWork() override;
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  /// If the wait fails, asks for the timeline's file: the last events say what came before.
  void wait() override;

 private:
  TimelineTransfer transfer_;
  bool is_recorded_ = true;  // its end is still to come
  std::unique_ptr<Work> work_;
};

/// The start of a collective, by its kind and the bucket that its label names.
TimelineTransfer start_of(const CollectiveCall& call);

}  // namespace zerorun
