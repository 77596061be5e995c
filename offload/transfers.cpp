#include "offload/transfers.h"

#include <cerrno>
#include <cstring>
#include <thread>

namespace zerorun {

TransferState carry_on(checkpoint::FileSystem& files, Transfers& transfers, WholeTransfer& whole,
                       const TransferDone& done) {
  constexpr int kMostRetries = 1000;
  auto& [transfer, retries] = whole;
  int64_t count = done.result;
  if (count == -EINVAL) {  // the file system refuses O_DIRECT for this transfer; write() and read() avoid it
    count = transfer.writes ? files.write(transfer.file, transfer.bytes, transfer.offset)
                            : files.read(transfer.file, transfer.bytes, transfer.offset);
  }
  // These errors are temporary. The kernel reports ECANCELED if the thread that submitted the request has
  // ended.
  const bool is_for_now = count == -EINTR || count == -EAGAIN || count == -ECANCELED;
  if (is_for_now && ++retries < kMostRetries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    count = 0;
  } else if (count <= 0) {
    return {.failure = std::string("cannot be ") + (transfer.writes ? "written" : "read") + ": " +
                       (count == 0 ? (transfer.writes ? "no byte was taken" : "the file ends too early")
                                   : std::strerror(static_cast<int>(-count)))};
  }
  if (count == static_cast<int64_t>(transfer.bytes.size())) return {.is_over = true};
  transfer.bytes = transfer.bytes.subspan(static_cast<size_t>(count));
  transfer.offset += count;
  transfers.start(transfer, done.tag);
  return {};
}

std::unique_ptr<Transfers> open_transfers(checkpoint::FileSystem& files, int most, int threads) {
  if (auto ring = open_io_uring(files, most)) return ring;
  return open_transfer_threads(files, threads);
}

}  // namespace zerorun
