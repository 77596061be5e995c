// Bytes of many ranks in, whole lines out: what the launcher writes to its own stdout and stderr. Pure (no
// file descriptors, no clock), owned by the Console, used by one thread.
//
// Lines end in '\n', '\r' or "\r\n" and are never interleaved. They carry "[rank R] " as soon as a second
// rank has printed anything; as long as one rank prints alone, its bytes pass through unchanged, whatever
// they are.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

enum class Stream { out = 0, err = 1 };
inline constexpr std::array<Stream, 2> kStreams = {Stream::out, Stream::err};

/// Where the launcher's own two streams lead.
struct Display {
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  bool joined = false;  // both lead to the same file: everything is written, in order, to stdout
};

class LineMultiplexer {
 public:
  /// A longer line is written in pieces, and broken by '\n' if another rank's line comes in between.
  static constexpr size_t kLongestLine = 1 << 20;

  LineMultiplexer(int ranks, Display display);

  void feed(int rank, Stream stream, std::string_view bytes);
  /// The rank will write no more to this stream: its unfinished last line goes out as it is.
  void close(int rank, Stream stream);
  /// A line of the launcher's own, on stderr.
  void notice(std::string_view line);
  /// What is to be written to the launcher's stream since the last call.
  std::string take(Stream stream);

 private:
  struct Source {
    int rank;
    std::string partial;
    bool live = false;  // its last line ended in '\r': the next one is drawn over it
  };
  struct Sink {
    bool is_terminal = false;
    std::string output;
    const Source* last = nullptr;  // who wrote last
    bool open = false;             // the last line is unfinished
    bool drawn = false;            // the last line is there to be drawn over
  };

  Source& source(int rank, Stream stream) { return sources_[2 * rank + static_cast<int>(stream)]; }
  Sink& sink(Stream stream) { return sinks_[joined_ ? 0 : static_cast<int>(stream)]; }
  void write(Source& source, Sink& sink, std::string_view text, bool finished);

  std::vector<Source> sources_;  // never resized: sinks point into it
  std::array<Sink, 2> sinks_;
  bool joined_;
  int first_rank_ = -1;
  bool several_ranks_print_ = false;
};

}  // namespace zerorun
