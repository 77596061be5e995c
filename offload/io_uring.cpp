// Transfers through io_uring. The kernel executes them, so no thread of this process waits for the disk.
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "offload/transfers.h"

namespace zerorun {
namespace {

class IoUring : public Transfers {
 public:
  /// Takes ownership of `ring`.
  explicit IoUring(const io_uring& ring) : ring_(ring) {}

  ~IoUring() override {
    while (under_way_ > 0) next(std::chrono::minutes(1));
    ::io_uring_queue_exit(&ring_);
  }

  void start(const Transfer& transfer, int tag) override {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    ZR_CHECK(entry, "more transfers than the ring has room for");
    constexpr size_t kMost = size_t{1} << 30;  // the ring counts in 32 bits; the caller goes on with the rest
    const auto count = static_cast<unsigned>(std::min(transfer.bytes.size(), kMost));
    const auto offset = static_cast<uint64_t>(transfer.offset);
    if (transfer.writes) {
      ::io_uring_prep_write(entry, transfer.file, transfer.bytes.data(), count, offset);
    } else {
      ::io_uring_prep_read(entry, transfer.file, transfer.bytes.data(), count, offset);
    }
    entry->user_data = static_cast<uint64_t>(tag);
    int submitted = 0;
    constexpr int kMostRetries = 10'000;
    for (int retry = 0; retry < kMostRetries; ++retry) {
      submitted = ::io_uring_submit(&ring_);
      if (submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the kernel is short of memory: try again
    }
    ZR_CHECK(submitted == 1, std::string("io_uring_submit: ") + std::strerror(-submitted));
    ++under_way_;
  }

  std::optional<TransferDone> next(std::chrono::milliseconds patience) override {
    io_uring_cqe* entry = nullptr;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (::io_uring_peek_cqe(&ring_, &entry) != 0) {
      const auto rest =
          std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now());
      if (rest.count() <= 0) return std::nullopt;
      __kernel_timespec time{.tv_sec = rest.count() / 1'000'000'000, .tv_nsec = rest.count() % 1'000'000'000};
      if (::io_uring_wait_cqe_timeout(&ring_, &entry, &time) == 0)
        break;  // otherwise a signal interrupted the wait, or it timed out
    }
    const TransferDone done{.tag = static_cast<int>(entry->user_data), .result = entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    --under_way_;
    return done;
  }

  const char* name() const override { return "io_uring"; }

 private:
  io_uring ring_;
  int under_way_ = 0;
};

}  // namespace

std::unique_ptr<Transfers> open_io_uring(checkpoint::FileSystem& files, int most) {
  if (!files.has_descriptors()) return nullptr;
  io_uring ring{};
  if (::io_uring_queue_init(static_cast<unsigned>(most), &ring, 0) < 0) return nullptr;
  // Kernels without this feature also lack IORING_OP_READ and IORING_OP_WRITE, which start() needs.
  const bool is_complete = (ring.features & IORING_FEAT_RW_CUR_POS) != 0;
  if (is_complete) return std::make_unique<IoUring>(ring);
  ::io_uring_queue_exit(&ring);
  return nullptr;
}

}  // namespace zerorun
