#include "base/join_board.h"

#include <unistd.h>

#include <mutex>

namespace zerorun {
namespace {

constexpr char kJoinsFile[] = "zerorun joins";

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
  const UniqueFd fd = open_rank_file(kBoardVariable, kJoinsFile);
  if (!fd.is_open()) return;
  const Joins value = {2 * count.begun - (count.begun > count.ended ? 1 : 0),
                       static_cast<uint32_t>(world_size)};
  // A failure only means that the launcher does not see this rank.
  [[maybe_unused]] const ssize_t written =
      ::pwrite(fd.get(), &value, sizeof value, static_cast<off_t>(sizeof value) * local_rank);
}

}  // namespace

JoinBoard::JoinBoard(int ranks) : file_(kJoinsFile, sizeof(Joins), ranks) {}

Joins JoinBoard::joins(int local_rank) const {
  Joins value;
  return file_.read(local_rank, &value) ? value : Joins{};
}

Joining::Joining(int local_rank, int world_size) : local_rank_(local_rank), world_size_(world_size) {
  const std::lock_guard lock(count().mutex);
  ++count().begun;
  show(local_rank_, world_size_, count());
  activity::drive();
  wait_.emplace("", "the start of the job, where all ranks join");
}

Joining::~Joining() {
  const std::lock_guard lock(count().mutex);
  ++count().ended;
  show(local_rank_, world_size_, count());
}

}  // namespace zerorun
