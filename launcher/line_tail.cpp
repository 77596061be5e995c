#include "launcher/line_tail.h"

namespace zerorun::launcher {
namespace {

bool blank(const std::string& line) {
  return line.find_first_not_of(" \t") == std::string::npos;
}

}  // namespace

void LineTail::feed(std::string_view bytes) {
  for (char byte : bytes) {
    if (byte == '\n') {
      end_line();
    } else if (byte == '\r') {
      draw_over_ = true;
    } else {
      if (draw_over_) {
        partial_.clear();
        cut_ = draw_over_ = false;
      }
      bool control = (static_cast<unsigned char>(byte) < 0x20 && byte != '\t') || byte == 0x7f;
      if (partial_.size() < kLongestLine) {
        partial_ += control ? '?' : byte;
      } else {
        cut_ = true;
      }
    }
  }
}

std::vector<std::string> LineTail::lines() const {
  LineTail ended = *this;
  ended.end_line();
  return {ended.lines_.begin(), ended.lines_.end()};
}

void LineTail::end_line() {
  if (!blank(partial_)) {
    lines_.push_back(partial_ + (cut_ ? " ..." : ""));
    if (lines_.size() > kLines) lines_.pop_front();
  }
  partial_.clear();
  cut_ = draw_over_ = false;
}

}  // namespace zerorun::launcher
