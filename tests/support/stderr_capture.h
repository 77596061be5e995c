// Captures the output of all threads of this process to stderr, from construction until text() is called. At
// most one capture may exist at a time.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

namespace zerorun::testing {

class StderrCapture {
 public:
  StderrCapture() : file_(std::tmpfile()), saved_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~StderrCapture() {
    restore();
    std::fclose(file_);
  }
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;

  std::string text() {
    restore();
    std::rewind(file_);
    std::string text(1 << 16, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    std::fflush(stderr);
    dup2(saved_, STDERR_FILENO);
    close(std::exchange(saved_, -1));
  }
  std::FILE* file_;
  int saved_;
};

}  // namespace zerorun::testing
