#include "offload/transfers.h"

namespace zerorun {

std::unique_ptr<Transfers> open_transfers(checkpoint::FileSystem& files, int most, int threads) {
  if (auto ring = open_io_uring(files, most)) return ring;
  return open_transfer_threads(files, threads);
}

}  // namespace zerorun
