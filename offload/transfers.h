// Asynchronous reads and writes of files: through io_uring if the kernel allows it, else by threads. Used by
// one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/file_system.h"

namespace zerorun {

struct Transfer {
  int file;  // file number in the FileSystem
  bool writes;
  std::span<std::byte> bytes;  // must stay valid until the transfer is done
  int64_t offset;              // position in the file, in bytes
};

/// The result of a transfer: bytes transferred, possibly fewer than requested, or -errno.
struct TransferDone {
  int tag;
  int64_t result;
};

class Transfers {
 public:
  /// Waits for all transfers in flight.
  virtual ~Transfers() = default;

  /// Starts a transfer without waiting for the disk. The number of transfers in flight must not exceed the
  /// `most` that was passed to open_transfers().
  virtual void start(const Transfer& transfer, int tag) = 0;
  /// Waits up to `patience` for a transfer to complete, and returns its result, or nothing if none completes.
  /// Does not wait if `patience` is 0.
  virtual std::optional<TransferDone> next(std::chrono::milliseconds patience) = 0;
  /// The implementation's name, for messages: "io_uring".
  virtual const char* name() const = 0;
};

/// A transfer that goes on until all of its bytes are transferred.
struct WholeTransfer {
  Transfer transfer;  // what is left
  int retries = 0;
};

struct TransferState {
  bool is_over = false;
  std::string failure = {};  // why it cannot go on, such as "cannot be read: Input/output error"
};

/// Deals with the result of a transfer: starts again what ended early or was interrupted, with the same tag.
TransferState carry_on(checkpoint::FileSystem& files, Transfers& transfers, WholeTransfer& whole,
                       const TransferDone& done);

/// `most` is the maximum number of transfers in flight. `threads` is the number of I/O threads if there is no
/// io_uring. `files` must outlive the result.
std::unique_ptr<Transfers> open_transfers(checkpoint::FileSystem& files, int most, int threads);
/// Returns null if this process may not use io_uring, or if `files` does not use kernel file descriptors.
std::unique_ptr<Transfers> open_io_uring(checkpoint::FileSystem& files, int most);
std::unique_ptr<Transfers> open_transfer_threads(checkpoint::FileSystem& files, int threads);

}  // namespace zerorun
