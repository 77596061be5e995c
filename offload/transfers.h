// Reads and writes of files that go on while the caller does something else: through io_uring where the
// kernel lets us, else by threads. One thread uses it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "checkpoint/file_system.h"

namespace zerorun {

struct Transfer {
  int file;  // as the file system numbers it
  bool writes;
  std::span<std::byte> bytes;  // stays until it is done
  int64_t offset;              // in the file
};

/// As the system calls have it: bytes transferred, maybe fewer than asked for, or -errno.
struct TransferDone {
  int tag;
  int64_t result;
};

class Transfers {
 public:
  /// Returns when nothing is under way any more.
  virtual ~Transfers() = default;

  /// Never waits for the disk. At most as many are under way as open_transfers() was told.
  virtual void start(const Transfer& transfer, int tag) = 0;
  /// One that is done; absent where none is until then. At once with a `patience` of 0.
  virtual std::optional<TransferDone> next(std::chrono::milliseconds patience) = 0;
  /// For messages: "io_uring".
  virtual const char* name() const = 0;
};

/// `most`: under way at a time. `threads`: where there is no io_uring. `files` outlives it.
std::unique_ptr<Transfers> open_transfers(FileSystem& files, int most, int threads);
/// Null where this process may not use it, or the file system's files are not the kernel's.
std::unique_ptr<Transfers> open_io_uring(FileSystem& files, int most);
std::unique_ptr<Transfers> open_transfer_threads(FileSystem& files, int threads);

}  // namespace zerorun
