// Blocks of bytes in a file without a name, while they are not in use. Any thread; a call may wait for the
// disk.
//
// [Note: scratch file] put() copies a block into a page-aligned buffer and starts to write it. Blocks come
// back in the reverse order as a rule: what a forward has put last, its backward gets first. So a buffer
// keeps its block until put() needs the buffer for another one, and get() lends the buffer itself and starts
// to read the last block before it that is not lent. A place in the file is used again once its block is
// dropped.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/timeline.h"
#include "checkpoint/file_system.h"
#include "offload/transfers.h"

namespace zerorun {

struct ScratchFileOptions {
  std::filesystem::path folder;  // must exist
  std::string key;               // of the config that asks for the file, for messages
  int rank = 0;                  // for messages
  int threads = 1;               // number of I/O threads if there is no io_uring
  std::function<std::unique_ptr<Transfers>(checkpoint::FileSystem&, int most, int threads)> open =
      open_transfers;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// If true, only sizes are computed, for plans: there is no file and no memory, and get() returns null.
  bool sizes_only = false;
};

class ScratchFile {
 public:
  /// Buffers of blocks that are written, read ahead, or lent. There are more only while all of these are
  /// lent.
  static constexpr int kBuffers = 4;

  /// Creates the file. `files` must outlive this object. Throws UserError if that fails.
  ScratchFile(checkpoint::FileSystem& files, ScratchFileOptions options);
  /// Waits for the reads and writes in flight.
  ~ScratchFile() = default;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // put() and get() throw TrainingError, which names folder, block and rank, if a read, a write or a checksum
  // fails. From then on the object is unusable.

  /// Keeps a block of `bytes` bytes (at least 1), with which `fill` fills the memory that it is given. If it
  /// throws, there is no block. Returns the block's number: each is larger than the one before. `label` is
  /// for messages.
  int64_t put(int64_t bytes, const std::function<void(std::byte* memory)>& fill, std::string label);
  /// Returns page-aligned memory with the block's bytes, which is the caller's until give_back().
  std::byte* get(int64_t block);
  void give_back(const std::byte* memory) noexcept;
  /// Forgets the block. Its memory from get() stays valid.
  void drop(int64_t block) noexcept;

  /// The size of all buffers, and of the file.
  int64_t buffer_bytes() const;
  int64_t file_bytes() const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  enum class Use { free, writing, reading, ready, lent };
  struct Block {
    std::string label;
    int64_t offset;  // in the file
    int64_t bytes;
    uint64_t checksum = 0;
    int buffer = -1;          // that holds it, or into which it is read
    int lent = 0;             // how many buffers with its bytes are lent
    bool is_dropped = false;  // but still read or written
  };
  struct Buffer {
    std::unique_ptr<std::byte, Unmap> memory;
    int64_t bytes;
    Use use = Use::free;
    int64_t block = -1;  // that it holds, or that it was lent for
    WholeTransfer transfer = {};
    std::optional<TimelineTransfer> recorded = {};
  };

  void check_process() const;
  void check_not_failed() const;
  [[noreturn]] void fail(const Block& block, const std::string& what);
  int64_t take_place(int64_t bytes);
  void give_back_place(int64_t offset, int64_t bytes);
  void resize(Buffer& buffer, int64_t bytes) const;
  int find(Use use, int64_t bytes) const;
  int take_buffer(int64_t bytes);
  int take_spare_buffer(int64_t bytes);
  void release(Buffer& buffer);
  void start(int buffer, int64_t block, bool writes);
  void read_ahead(int64_t block);
  void finish_one();
  void finish(const TransferDone& done);
  void forget(int64_t block);

  checkpoint::FileSystem* files_;
  ScratchFileOptions options_;
  HomeProcess home_;
  mutable std::mutex mutex_;  // guards all members below
  std::optional<checkpoint::OpenFile> file_;
  std::map<int64_t, Block> blocks_;         // by number
  std::map<int64_t, int64_t> free_places_;  // sizes by offset; no two are neighbours, none is the last
  std::vector<Buffer> buffers_;
  int64_t next_block_ = 0;
  int64_t end_ = 0;  // of the places in use
  int64_t file_bytes_ = 0;
  int in_flight_ = 0;  // transfers
  std::string failure_;
  std::unique_ptr<Transfers> transfers_;  // last member, so it is destroyed before the memory it uses
};

}  // namespace zerorun
