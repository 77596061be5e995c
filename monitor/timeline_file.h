// A rank's timeline as a file of Perfetto's (https://perfetto.dev): a stream of TracePacket messages. Its
// events are those of a ring (base/timeline_ring.h). Plain functions; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/timeline_ring.h"

namespace zerorun {

/// The bytes of the file. Tracks: the engine's phases, each thread, each kind of transfer, each counter. Ends
/// without a begin are left out: the ring has lost it, or it came before the events.
std::string perfetto_trace(const TimelineOwner& owner, const std::vector<TimelineThread>& threads,
                           const std::vector<TimelineEvent>& events);

/// The folder for the files of ranks beside the archive `path`.
std::filesystem::path folder_of_ranks(const std::filesystem::path& path);
/// "rank3.pftrace"
std::string rank_file_name(int rank);
/// "rank3.json"
std::string rank_facts_name(int rank);

/// Writes the events of `ring` that belong to its file, and then what archives and reports must know of it,
/// as folder_of_ranks(...)/rank3.json. Replaces files that are there. Throws UserError. Returns how many
/// events the ring has lost.
uint64_t write_rank_file(const TimelineRing& ring);
/// Writes all that `ring` holds to folder_of_ranks(...)/rank3.last.pftrace, for a rank whose file has the
/// chosen steps already. Throws UserError.
void write_last_events(const TimelineRing& ring);
/// Removes the files of a rank, which are of an earlier run.
void remove_rank_files(const std::filesystem::path& path, int rank);

}  // namespace zerorun
