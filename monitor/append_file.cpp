#include "monitor/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw UserError(std::string("cannot ") + what + ' ' + path.string() + ": " + std::strerror(error));
}

int64_t size_of_file(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? status.st_size : 0;
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) fail(path_, "open", errno);
}

bool AppendFile::is_empty() const {
  return size_of_file(file_.get()) == 0;
}

void AppendFile::cut_to_whole_lines() {
  const int64_t size = size_of_file(file_.get());
  int64_t kept = size;
  for (char last = 0; kept > 0; --kept) {
    if (::pread(file_.get(), &last, 1, kept - 1) != 1) fail(path_, "read", errno);
    if (last == '\n') break;
  }
  if (kept < size && ::ftruncate(file_.get(), kept) != 0) fail(path_, "repair", errno);
}

void AppendFile::append(std::string_view record) {
  const int64_t before = size_of_file(file_.get());
  std::string_view rest = record;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      if (rest.size() < record.size() && ::ftruncate(file_.get(), before) != 0) fail(path_, "repair", errno);
      fail(path_, "write to", error);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace zerorun
