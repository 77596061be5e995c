// The files of all ranks as one archive, which Perfetto opens as one trace: a tar with a manifest that says
// how the ranks' clocks relate (https://perfetto.dev/docs/reference/perfetto-manifest). Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace zerorun {

/// What a manifest says of a rank.
struct RankOfTimeline {
  int rank = 0;
  int world_size = 1;
  std::string machine;
  int64_t clock_offset_ns = 0;  // rank 0's clock minus this rank's
};

/// The JSON of the manifest. The lowest rank's clock is that of the trace.
std::string perfetto_manifest(const std::vector<RankOfTimeline>& ranks);

/// A tar (ustar) of files that are given by name and content.
std::string tar_of(const std::vector<std::pair<std::string, std::string>>& files);

/// The ranks of the archive `path` whose files are there and whole, ascending.
std::vector<RankOfTimeline> ranks_with_files(const std::filesystem::path& path);
/// Writes the archive `path` of these ranks' files. Throws UserError.
void write_timeline_archive(const std::filesystem::path& path, const std::vector<RankOfTimeline>& ranks);

}  // namespace zerorun
