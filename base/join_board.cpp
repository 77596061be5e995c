#include "base/join_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <mutex>

namespace zerorun {
namespace {

constexpr char kName[] = "zerorun joins";

// A variable that has outlived its launcher may lead to another process's file.
bool is_board(int fd) {
  std::array<char, 64> link{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(path.c_str(), link.data(), link.size());
  return size > 0 &&
         std::string(link.data(), static_cast<size_t>(size)).starts_with(std::string("/memfd:") + kName);
}

// Joins of this process, and those of them that have ended.
struct Count {
  std::mutex mutex;
  uint32_t begun = 0, ended = 0;
};

Count& count() {
  static Count all;
  return all;
}

void show(int local_rank, int world_size, const Count& count) {
  const char* path = std::getenv(kBoardVariable);
  if (path == nullptr || *path == '\0') return;
  const UniqueFd fd(::open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open() || !is_board(fd.get())) return;
  const Joins value = {2 * count.begun - (count.begun > count.ended ? 1 : 0),
                       static_cast<uint32_t>(world_size)};
  // A failure only means that the launcher does not see this rank.
  [[maybe_unused]] const ssize_t written =
      ::pwrite(fd.get(), &value, sizeof value, static_cast<off_t>(sizeof value) * local_rank);
}

}  // namespace

JoinBoard::JoinBoard(int ranks) : file_(::memfd_create(kName, MFD_CLOEXEC)) {
  if (file_.is_open() && ::ftruncate(file_.get(), static_cast<off_t>(sizeof(Joins)) * ranks) != 0)
    file_.reset();
}

std::string JoinBoard::path() const {
  if (!file_.is_open()) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
}

Joins JoinBoard::joins(int local_rank) const {
  Joins value;
  const off_t place = static_cast<off_t>(sizeof value) * local_rank;
  return ::pread(file_.get(), &value, sizeof value, place) == sizeof value ? value : Joins{};
}

Joining::Joining(int local_rank, int world_size) : local_rank_(local_rank), world_size_(world_size) {
  const std::lock_guard lock(count().mutex);
  ++count().begun;
  show(local_rank_, world_size_, count());
}

Joining::~Joining() {
  const std::lock_guard lock(count().mutex);
  ++count().ended;
  show(local_rank_, world_size_, count());
}

}  // namespace zerorun
