#include "base/rank_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/memory_file.h"

namespace zerorun {

RankFile::RankFile(const char* name, size_t entry_bytes, int ranks)
    : file_(::memfd_create(name, MFD_CLOEXEC)), entry_bytes_(entry_bytes) {
  if (file_.is_open() && ::ftruncate(file_.get(), static_cast<off_t>(entry_bytes) * ranks) != 0)
    file_.reset();
}

std::string RankFile::path() const {
  if (!file_.is_open()) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
}

bool RankFile::read(int local_rank, void* entry) const {
  const off_t place = static_cast<off_t>(entry_bytes_) * local_rank;
  return file_.is_open() &&
         ::pread(file_.get(), entry, entry_bytes_, place) == static_cast<ssize_t>(entry_bytes_);
}

UniqueFd open_rank_file(const char* variable, const char* name) {
  const char* path = std::getenv(variable);
  if (path == nullptr || *path == '\0') return {};
  return open_memory_file(path, name);
}

}  // namespace zerorun
