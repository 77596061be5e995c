#include "base/run_log_board.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <string>

namespace zerorun {
namespace {

constexpr char kFile[] = "zerorun run log";
using Entry = std::array<char, PATH_MAX>;

}  // namespace

RunLogBoard::RunLogBoard(bool has_board) {
  if (has_board) file_ = RankFile(kFile, sizeof(Entry), 1);
}

std::filesystem::path RunLogBoard::folder() const {
  Entry entry{};
  if (!file_.read(0, entry.data())) return {};
  entry.back() = '\0';
  return entry.data();
}

void show_run_log(const std::filesystem::path& folder) {
  const UniqueFd fd = open_rank_file(kRunLogBoardVariable, kFile);
  Entry entry{};
  if (!fd.is_open() || folder.string().size() >= entry.size()) return;
  folder.string().copy(entry.data(), entry.size() - 1);
  // A failure only means that the launcher does not know the log.
  [[maybe_unused]] const ssize_t written = ::pwrite(fd.get(), entry.data(), entry.size(), 0);
}

}  // namespace zerorun
