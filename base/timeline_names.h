// What a timeline (base/timeline.h) can show, by name. The order is part of a ring's layout: a launcher reads
// the rings of its ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace zerorun {

enum class TimelineName : uint8_t {
  // Phases of a step, on the engine's track.
  forward,
  backward,
  optimizer_step,
  reduction,
  norm,
  update,
  // Spans on the track of their thread.
  update_shard,
  start_gathers,
  wait_for_gather,
  wait_for_ranks,
  wait_for_message,
  wait_for_device,
  sum,
  wait_for_files,
  save,
  keep_for_save,
  micro_forward,
  micro_backward,
  // Transfers, which overlap each other and what a thread does.
  reduce_scatter,
  all_gather,
  all_reduce,
  broadcast,
  barrier,
  send,
  receive,
  read_chunk,
  write_chunk,
  // Instants.
  end_of_step,
  failed_wait,
  // Counters, in bytes.
  parameters,
  gradients,
  master,
  moments,
  buckets,
  buffers,
  gathered,
  on_host,
  in_files,
};

/// How a name is shown.
struct TimelineText {
  const char* name;
  const char* number;  // what an event's number is; null: it has none
  const char* value;   // likewise
};

inline constexpr std::array<TimelineText, 38> kTimelineTexts = {{
    {"forward", nullptr, nullptr},
    {"backward", nullptr, nullptr},
    {"step", nullptr, nullptr},
    {"wait for reductions", nullptr, nullptr},
    {"norm", nullptr, nullptr},
    {"update", nullptr, nullptr},
    {"update a shard", "shard", nullptr},
    {"start gathers", "count", nullptr},
    {"wait for a gather", "bucket", nullptr},
    {"wait for ranks", "first rank", nullptr},
    {"wait for a message", "rank", nullptr},
    {"wait for the device", nullptr, nullptr},
    {"sum over ranks", nullptr, "bytes"},
    {"wait for files", "chunk", nullptr},
    {"write a checkpoint", nullptr, nullptr},
    {"keep state for a checkpoint", nullptr, nullptr},
    {"forward of a micro-batch", "micro-batch", nullptr},
    {"backward of a micro-batch", "micro-batch", nullptr},
    {"reduce_scatter", "bucket", "bytes"},
    {"all_gather", "bucket", "bytes"},
    {"all_reduce", "bucket", "bytes"},
    {"broadcast", "bucket", "bytes"},
    {"barrier", "bucket", "bytes"},
    {"send", "rank", "bytes"},
    {"receive", "rank", "bytes"},
    {"read from files", "chunk", "bytes"},
    {"write to files", "chunk", "bytes"},
    {"end of step", "step", nullptr},
    {"failed wait", nullptr, nullptr},
    {"parameters", nullptr, nullptr},
    {"gradients", nullptr, nullptr},
    {"master weights", nullptr, nullptr},
    {"moments", nullptr, nullptr},
    {"bucket buffers", nullptr, nullptr},
    {"module buffers", nullptr, nullptr},
    {"gathered parameters", nullptr, nullptr},
    {"states on the host", nullptr, nullptr},
    {"states in files", nullptr, nullptr},
}};
static_assert(kTimelineTexts.size() == static_cast<size_t>(TimelineName::in_files) + 1);

constexpr const TimelineText& text_of(TimelineName name) {
  return kTimelineTexts[static_cast<size_t>(name)];
}
/// Whether the name is that of a phase of a step, whose spans are on the engine's track.
constexpr bool is_phase(TimelineName name) {
  return name <= TimelineName::update;
}

}  // namespace zerorun
