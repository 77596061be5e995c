#include "comm/recorded_work.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"

namespace zerorun {
namespace {

TimelineName name_in_timeline(Collective kind) {
  switch (kind) {
    case Collective::reduce_scatter:
      return TimelineName::reduce_scatter;
    case Collective::all_gather:
      return TimelineName::all_gather;
    case Collective::all_reduce:
      return TimelineName::all_reduce;
    case Collective::broadcast:
      return TimelineName::broadcast;
    case Collective::barrier:
      break;
  }
  return TimelineName::barrier;
}

// The 3 of "gradients of bucket 3 (h.0.weight)"; -1: the label names no bucket.
int32_t bucket_in(std::string_view label) {
  constexpr std::string_view kWord = "bucket ";
  const size_t place = label.find(kWord);
  if (place == std::string_view::npos) return -1;
  const std::string_view rest = label.substr(place + kWord.size());
  int32_t bucket = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), bucket);
  return bucket;
}

}  // namespace

void RecordedWork::wait() {
  try {
    work_->wait();
  } catch (const CommError&) {
    is_recorded_ = false;  // the transfer has not ended
    timeline::instant(TimelineName::failed_wait);
    timeline::request_files();
    throw;
  }
  is_recorded_ = false;
  if (timeline::is_on()) transfer_.finish();
}

// Of a transfer for which nobody waits any more.
RecordedWork::~RecordedWork() {
  if (is_recorded_ && timeline::is_on()) transfer_.finish();
}

TimelineTransfer start_of(const CollectiveCall& call) {
  const auto bytes = static_cast<int64_t>(std::max(call.input.nbytes(), call.output.nbytes()));
  return {name_in_timeline(call.kind), bucket_in(call.label), bytes};
}

}  // namespace zerorun
