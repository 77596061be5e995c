#include "launcher/line_multiplexer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

using namespace zerorun::launcher;

namespace {

std::string out(LineMultiplexer& lines) {
  return lines.take(Stream::out);
}

std::vector<std::string> named_ranks(int number) {
  std::vector<std::string> labels;
  for (int rank = 0; rank < number; ++rank) labels.push_back("rank " + std::to_string(rank));
  return labels;
}

constexpr Display kFiles = {};
constexpr Display kTerminal = {.out_is_terminal = true, .err_is_terminal = true, .joined = true};
constexpr const char* kErase = "\r\x1b[K";

}  // namespace

TEST_CASE("one rank alone passes through unchanged, whatever its bytes and however they are cut") {
  std::mt19937 random(7);
  std::string bytes;
  for (int i = 0; i < 200000; ++i)
    bytes += static_cast<char>(random() % 16 == 0 ? "\r\n"[random() % 2] : random() % 256);
  LineMultiplexer lines(named_ranks(4), kFiles);
  std::string written;
  for (size_t at = 0; at < bytes.size();) {
    size_t size = std::min<size_t>(1 + random() % 300, bytes.size() - at);
    lines.feed(2, Stream::out, std::string_view(bytes).substr(at, size));
    written += out(lines);
    at += size;
  }
  lines.close(2, Stream::out);
  written += out(lines);
  CHECK(written == bytes);
  CHECK(lines.take(Stream::err).empty());
}

TEST_CASE("prefixes begin when a second rank prints, on either stream") {
  LineMultiplexer lines(named_ranks(2), kFiles);
  lines.feed(0, Stream::out, "a\n");
  lines.feed(0, Stream::err, "b\n");
  CHECK(out(lines) == "a\n");
  CHECK(lines.take(Stream::err) == "b\n");
  lines.feed(1, Stream::err, "c\n");
  lines.feed(0, Stream::out, "d\n");
  CHECK(lines.take(Stream::err) == "[rank 1] c\n");
  CHECK(out(lines) == "[rank 0] d\n");
}

TEST_CASE("lines that arrive in pieces are not interleaved") {
  LineMultiplexer lines(named_ranks(2), kFiles);
  lines.feed(0, Stream::out, "first half, ");
  lines.feed(1, Stream::out, "other ");
  CHECK(out(lines).empty());
  lines.feed(0, Stream::out, "second half\nnext");
  lines.feed(1, Stream::out, "rank\n");
  CHECK(out(lines) == "[rank 0] first half, second half\n[rank 1] other rank\n");
  lines.close(0, Stream::out);
  CHECK(out(lines) == "[rank 0] next");
}

TEST_CASE("an unfinished last line is ended before another rank's line") {
  LineMultiplexer lines(named_ranks(2), kFiles);
  lines.feed(0, Stream::out, "no newline");
  lines.close(0, Stream::out);
  lines.feed(1, Stream::out, "x\n");
  CHECK(out(lines) == "no newline\n[rank 1] x\n");
}

TEST_CASE("a carriage return ends a line and passes through") {
  LineMultiplexer lines(named_ranks(2), kFiles);
  lines.feed(0, Stream::out, "step 1\r");
  CHECK(out(lines) == "step 1\r");
  lines.feed(1, Stream::out, "x\n");
  lines.feed(0, Stream::out, "step 2\rstep 3\r");
  CHECK(out(lines) == "[rank 1] x\n[rank 0] step 2\r[rank 0] step 3\r");
}

TEST_CASE("\\r\\n is one line end, even if it arrives in two reads") {
  LineMultiplexer lines(named_ranks(2), kFiles);
  lines.feed(0, Stream::out, "a\n");
  lines.feed(1, Stream::out, "b\r\nc\r");
  lines.feed(1, Stream::out, "\nd\n");
  CHECK(out(lines) == "a\n[rank 1] b\r\n[rank 1] c\r\n[rank 1] d\n");
}

TEST_CASE("a line without end does not fill the memory and is broken only by another rank") {
  LineMultiplexer lines(named_ranks(2), kFiles);
  const std::string piece(LineMultiplexer::kLongestLine, 'x');
  lines.feed(0, Stream::out, piece);
  CHECK(out(lines) == piece);
  lines.feed(0, Stream::out, "y");
  CHECK(out(lines).empty());
  lines.feed(1, Stream::out, "b\n");
  CHECK(out(lines) == "\n[rank 1] b\n");
  lines.feed(0, Stream::out, "\n");
  CHECK(out(lines) == "[rank 0] y\n");
}

TEST_CASE("a live line with its carriage return in front shows at once on a terminal") {
  LineMultiplexer lines(named_ranks(2), kTerminal);
  lines.feed(0, Stream::out, "\rstep 1");
  CHECK(out(lines) == "\rstep 1");
  lines.feed(0, Stream::out, "\rstep 2");
  CHECK(out(lines) == "\rstep 2");
  lines.feed(0, Stream::out, "\nend\n");
  CHECK(out(lines) == "\nend\n");
}

TEST_CASE("on a terminal another rank's line replaces the live line instead of mixing with it") {
  LineMultiplexer lines(named_ranks(2), kTerminal);
  lines.feed(0, Stream::out, "step 1, a long live line\r");
  out(lines);
  lines.feed(1, Stream::err, "warning\n");
  CHECK(out(lines) == std::string(kErase) + "[rank 1] warning\n");
  lines.feed(0, Stream::out, "step 2\r");
  CHECK(out(lines) == "[rank 0] step 2\r");
  lines.notice("zerorun: over");
  CHECK(out(lines) == "\nzerorun: over\n");  // the live line stays readable
}

TEST_CASE("streams that lead to one file are written in order, separate files do not disturb each other") {
  LineMultiplexer joined(named_ranks(1), {.joined = true});
  joined.feed(0, Stream::out, "a\n");
  joined.feed(0, Stream::err, "b\n");
  joined.feed(0, Stream::out, "c\n");
  CHECK(out(joined) == "a\nb\nc\n");
  CHECK(joined.take(Stream::err).empty());

  LineMultiplexer separate(named_ranks(1), kFiles);
  separate.feed(0, Stream::out, std::string(LineMultiplexer::kLongestLine, 'x'));
  separate.feed(0, Stream::err, "b\n");
  separate.notice("n");
  separate.feed(0, Stream::out, "y\n");
  CHECK(out(separate) == std::string(LineMultiplexer::kLongestLine, 'x') + "y\n");
  CHECK(separate.take(Stream::err) == "b\nn\n");
}
