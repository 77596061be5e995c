#include "comm/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace zerorun {

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

SharedSegment SharedSegment::create(const char* purpose, size_t bytes) {
  SharedSegment segment;
  segment.bytes_ = bytes;
  segment.file_ = UniqueFd(memfd_create(purpose, MFD_CLOEXEC));
  if (!segment.file_.is_open() || ftruncate(segment.file_.get(), static_cast<off_t>(bytes)) != 0) {
    throw Error("cannot create shared memory of " + std::to_string(bytes) +
                " bytes (memfd_create): " + std::strerror(errno));
  }
  segment.map(true);
  return segment;
}

SharedSegment SharedSegment::open(pid_t pid, int descriptor, size_t bytes, bool writable) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  SharedSegment segment;
  segment.bytes_ = bytes;
  segment.file_ = UniqueFd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (!segment.file_.is_open()) {
    throw Error("the shared memory of process " + std::to_string(pid) +
                " cannot be opened: " + std::strerror(errno));
  }
  struct stat facts {};  // access beyond the end of a smaller file would kill this process
  if (fstat(segment.file_.get(), &facts) != 0 || static_cast<size_t>(facts.st_size) != bytes) {
    throw Error("descriptor " + std::to_string(descriptor) + " of process " + std::to_string(pid) +
                " is not its shared memory");
  }
  segment.map(writable);
  return segment;
}

void SharedSegment::map(bool writable) {
  void* pages = mmap(nullptr, bytes_, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, file_.get(), 0);
  if (pages == MAP_FAILED) {
    throw Error("no " + std::to_string(bytes_) +
                " bytes of addresses for shared memory: " + std::strerror(errno));
  }
  data_ = static_cast<char*>(pages);
  madvise(data_, bytes_,
          MADV_DONTDUMP);  // else a core dump would contain every page, including untouched pages
}

}  // namespace zerorun
