// Turns the output of many ranks into whole lines for the launcher's own stdout and stderr. Pure (no file
// descriptors, no clock), owned by the Console, used by one thread.
//
// Lines end in '\n', '\r' or "\r\n" and are never interleaved. As long as only one rank prints, its bytes
// pass through unchanged, even binary data. As soon as a second rank has printed anything, each line starts
// with "[rank R] ".
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::launcher {

enum class Stream { out = 0, err = 1 };
inline constexpr std::array<Stream, 2> kStreams = {Stream::out, Stream::err};

/// The kinds of files that the launcher's own two streams write to.
struct Display {
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  bool joined = false;  // both are the same file: all output is written, in order, to stdout
};

class LineMultiplexer {
 public:
  /// A longer line is written in pieces. A piece gets a '\n' if a line of another rank follows.
  static constexpr size_t kLongestLine = 1 << 20;

  /// Lines of source s, counted from 0, are marked with `labels`[s].
  LineMultiplexer(const std::vector<std::string>& labels, Display display);

  void feed(int rank, Stream stream, std::string_view bytes);
  /// Call when the rank will write no more to this stream. Writes the rank's unfinished last line as it is.
  void close(int rank, Stream stream);
  /// Prints a line of the launcher's own on stderr.
  void notice(std::string_view line);
  /// Returns and removes the bytes that are to be written to the launcher's stream.
  std::string take(Stream stream);

 private:
  struct Source {
    std::string label;
    std::string partial;
    bool live = false;  // the last line ended in '\r': the next line is drawn over it
  };
  struct Sink {
    bool is_terminal = false;
    std::string output;
    const Source* last = nullptr;  // the source of the last line
    bool open = false;             // the last line is unfinished
    bool drawn = false;            // the next line will be drawn over the last line
  };

  Source& source(int rank, Stream stream) { return sources_[2 * rank + static_cast<int>(stream)]; }
  Sink& sink(Stream stream) { return sinks_[joined_ ? 0 : static_cast<int>(stream)]; }
  void write(Source& source, Sink& sink, std::string_view text, bool finished);

  std::vector<Source> sources_;  // never resized: Sink::last points into it
  std::array<Sink, 2> sinks_;
  bool joined_;
  int first_to_print_ = -1;
  bool several_ranks_print_ = false;
};

}  // namespace zerorun::launcher
