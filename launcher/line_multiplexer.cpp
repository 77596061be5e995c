#include "launcher/line_multiplexer.h"

#include <utility>

namespace zerorun::launcher {

LineMultiplexer::LineMultiplexer(const std::vector<std::string>& labels, Display display)
    : joined_(display.joined) {
  sources_.reserve(2 * labels.size());
  for (const std::string& label : labels) {
    for ([[maybe_unused]] Stream stream : kStreams) sources_.push_back({label, {}, false});
  }
  sink(Stream::err).is_terminal = display.err_is_terminal;
  sink(Stream::out).is_terminal = display.out_is_terminal;
}

void LineMultiplexer::feed(int rank, Stream stream, std::string_view bytes) {
  if (bytes.empty()) return;
  if (first_to_print_ < 0) first_to_print_ = rank;
  if (rank != first_to_print_) several_ranks_print_ = true;

  Source& from = source(rank, stream);
  Sink& to = sink(stream);
  while (!bytes.empty()) {
    size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) break;
    size_t length = end + (bytes.substr(end, 2) == "\r\n" ? 2 : 1);
    if (from.partial.empty()) {
      write(from, to, bytes.substr(0, length), true);
    } else {
      from.partial.append(bytes.substr(0, length));
      write(from, to, std::exchange(from.partial, {}), true);
    }
    bytes.remove_prefix(length);
  }
  from.partial.append(bytes);

  // A progress line may begin with '\r' instead of ending with it: on a terminal, write the text after '\r'
  // at once, because waiting for the next '\r' would show each update too late.
  bool live_on_terminal = from.live && to.is_terminal;
  if (from.partial.size() >= kLongestLine || (live_on_terminal && !from.partial.empty())) {
    write(from, to, std::exchange(from.partial, {}), false);
  }
}

void LineMultiplexer::close(int rank, Stream stream) {
  Source& from = source(rank, stream);
  if (!from.partial.empty()) write(from, sink(stream), std::exchange(from.partial, {}), false);
}

void LineMultiplexer::notice(std::string_view line) {
  Sink& to = sink(Stream::err);
  if (to.open || to.drawn) to.output += '\n';
  to.output.append(line).append("\n");
  to.last = nullptr;
  to.open = to.drawn = false;
}

std::string LineMultiplexer::take(Stream stream) {
  if (joined_ && stream == Stream::err) return {};
  return std::exchange(sink(stream).output, {});
}

void LineMultiplexer::write(Source& source, Sink& sink, std::string_view text, bool finished) {
  if (sink.last != &source) {
    if (sink.is_terminal && sink.drawn) {
      sink.output += "\r\x1b[K";  // erase the live line: the rank's next update draws it again
    } else if (sink.open) {
      sink.output += '\n';
    }
    sink.open = false;
  }
  // "\r\n" may arrive in two reads: a '\n' after the '\r' ends the same line, and gets no prefix.
  bool tail_of_line_end = source.live && text == "\n" && sink.last == &source;
  if (several_ranks_print_ && !sink.open && !tail_of_line_end) {
    sink.output += "[" + source.label + "] ";
  }
  sink.output.append(text);
  if (finished) source.live = text.back() == '\r';
  sink.last = &source;
  sink.open = !finished;
  sink.drawn = source.live;
}

}  // namespace zerorun::launcher
