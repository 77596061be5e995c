// Files with the output of ranks: DeepSpeed's --enable_each_rank_log and torchrun's --log_dir, --redirects,
// --tee and --local_ranks_filter. Owned by the Job, used on the main thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/line_multiplexer.h"

namespace zerorun::launcher {

/// The value of an option such as --tee: which streams (stdout, stderr) of each local rank it chooses.
struct StreamChoice {
  int all = 0;                            // for ranks not in `some`: bit 0 stdout, bit 1 stderr
  std::vector<std::pair<int, int>> some;  // local rank, streams

  int of(int local_rank) const;
  bool operator==(const StreamChoice&) const = default;
};

/// Parses torchrun's `3` or `0:1,1:3` (0: none, 1: stdout, 2: stderr, 3: both). Throws UserError naming
/// `option`.
StreamChoice parse_stream_choice(const std::string& text, const std::string& option);
/// Parses a list of ranks such as `0,2`. Throws UserError naming `option`.
std::vector<int> parse_rank_list(const std::string& text, const std::string& option);

struct LogOptions {
  // Both streams of rank R go into FOLDER/RUN_rankR.log only, after restart N into RUN_attemptN_rankR.log;
  // empty: off
  std::string one_file_folder;
  // FOLDER/RUN/attempt_N/LOCAL_RANK/stdout.log and stderr.log, on several hosts with RUN_nodeN; empty: off
  std::string folder;
  StreamChoice redirects;                   // streams that go into files of `folder` and are not printed
  StreamChoice tee;                         // streams that go into files of `folder` and are printed
  std::optional<std::vector<int>> printed;  // the local ranks whose output is printed; absent: all
  std::string run;                          // part of the files' names, that of this run alone
  int attempt = 0;                          // restarts of the ranks so far

  bool operator==(const LogOptions&) const = default;
};

class RankLogs {
 public:
  RankLogs() = default;
  /// Makes the folders and files of the ranks of this host. `node`: its number, if the job has several hosts,
  /// which may share the folder. Throws UserError naming the file, also if there is one of this name already.
  RankLogs(const LogOptions& options, int first_rank, int ranks, std::optional<int> node = {});

  /// Writes the bytes to the rank's file, if it has one; returns whether they are to be printed. If the file
  /// cannot be written, `failure` gets the reason, once, and from then on all is printed.
  bool feed(int local_rank, Stream stream, std::string_view bytes, std::string& failure);

 private:
  struct Sink {
    int file = -1;  // index into files_
    bool printed = true;
  };
  struct File {
    std::string path;
    UniqueFd fd;
  };
  int open(const std::string& path);

  std::vector<File> files_;
  std::vector<std::array<Sink, 2>> sinks_;  // by local rank
};

}  // namespace zerorun::launcher
