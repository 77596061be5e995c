#include "samples/tokenizer/text_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zerorun/program.h>

#include <cerrno>
#include <cstring>

#include "samples/tokenizer/utf8.h"
#include "samples/tokenizer/words.h"

namespace samples {
namespace {

using zerorun::UserError;

constexpr size_t kPart = 1 << 20;

}  // namespace

TextReader::TextReader(const std::filesystem::path& file, bool any_bytes)
    : name_(file.string()),
      any_bytes_(any_bytes),
      // Without O_NONBLOCK, open() would wait until somebody opens a pipe for writing.
      file_(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_ < 0)
    throw UserError(name_ + ": cannot be opened: " + std::strerror(errno) + " (expected a text file)");
  struct stat status {};
  const bool known = ::fstat(file_, &status) == 0;
  const std::string wrong = !known                         ? std::strerror(errno)
                            : S_ISDIR(status.st_mode)      ? "is a folder; name the files in it"
                            : S_ISREG(status.st_mode) == 0 ? "is no regular file"
                            : status.st_size == 0          ? "the file is empty; expected text"
                                                           : "";
  if (!wrong.empty()) {
    ::close(file_);
    throw UserError(name_ + ": " + wrong);
  }
  size_ = status.st_size;
}

TextReader::~TextReader() {
  ::close(file_);
}

void TextReader::read_more() {
  const size_t before = buffer_.size();
  buffer_.resize(before + kPart);
  ssize_t count = 0;
  do {
    count = ::pread(file_, buffer_.data() + before, kPart, read_);
  } while (count < 0 && errno == EINTR);
  if (count < 0) throw UserError(name_ + ": cannot be read: " + std::strerror(errno));
  buffer_.resize(before + static_cast<size_t>(count));
  read_ += count;
  if (count == 0 && read_ < size_) throw UserError(name_ + ": the file became shorter while it was read");
}

std::string_view TextReader::next() {
  buffer_.erase(0, given_);
  given_ = 0;
  while (given_ == 0) {
    if (read_ < size_ && buffer_.size() < kPart) read_more();
    const bool is_last = read_ >= size_;
    if (is_last && buffer_.empty()) return {};
    given_ = is_last || any_bytes_ ? buffer_.size() : last_cut(buffer_, buffer_.size());
    if (given_ == 0) read_more();
  }
  const std::string_view part(buffer_.data(), given_);
  if (any_bytes_) return part;
  const size_t valid = valid_utf8_prefix(part);
  if (valid == part.size()) return part;
  const int64_t where = read_ - static_cast<int64_t>(buffer_.size() - valid);
  throw UserError(
      name_ + ": byte " + std::to_string(where) +
      " is not UTF-8: convert the file (iconv -f LATIN1 -t UTF-8), or train on bytes, without --tokenizer");
}

}  // namespace samples
