// Keeps the state of slices in files. A few buffers in memory hold the chunks that are in use. Chunks are
// read ahead of their use and written after they are closed. Used by one thread at a time.
//
// [Note: generations] A slice has two slots, which are files of equal layout. One slot has the last complete
// generation, and an optimizer step writes its changes to the other slot. finish_generation() waits for these
// writes and then swaps the roles of the slots, so one complete generation always exists. lend() lends the
// file of that generation to a checkpoint, which may give the file a name (a hard link) instead of copying
// it, and creates a replacement file for the slot. A lent file is written again only if no checkpoint gave it
// a name and all borrowers have released it. Files without a name disappear when the process ends, even if it
// is killed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/timeline.h"
#include "checkpoint/file_system.h"
#include "checkpoint/state_file.h"
#include "offload/slot_layout.h"
#include "offload/transfers.h"

namespace zerorun {

struct StateFilesOptions {
  std::filesystem::path folder;  // must exist
  int rank = 0;                  // for messages
  /// Number of buffers of one chunk each. At least kFewestBuffers are made, but not more than chunks().
  int buffers = 4;
  int64_t chunk_bytes = 0;    // size of a chunk, a multiple of kChecksumBlock
  int64_t request_bytes = 0;  // maximum size of one read or write in bytes, a multiple of the page size
  int64_t alignment = 16;     // alignment of the parts of slices, in elements
  int threads = 1;            // number of I/O threads if there is no io_uring
  std::function<std::unique_ptr<Transfers>(checkpoint::FileSystem&, int most, int threads)> open =
      open_transfers;
  /// Called once with the memory of all buffers, whole pages, so that a device which copies from it can
  /// page-lock it. The result is destroyed before the memory is freed. Empty: nothing is called.
  std::function<std::shared_ptr<void>(void* memory, size_t bytes)> pin = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// If true, only sizes are computed, for plans: there are no files and no memory, nothing can be opened.
  bool sizes_only = false;
};

inline constexpr int kFewestBuffers = 3;  // one in use, one being read, one being written

/// A complete generation of a slice. Its file is not written while it is lent.
struct LentSlot {
  std::shared_ptr<checkpoint::OpenFile> file;
  checkpoint::StateFileFacts facts;
};

class StateFiles {
 public:
  /// Creates the slots and reserves disk space for their whole content. `files` must outlive this object.
  /// Throws UserError if the space cannot be reserved.
  StateFiles(checkpoint::FileSystem& files, StateFilesOptions options, std::vector<SliceContents> slices);
  /// Waits for the reads and writes in flight.
  ~StateFiles();
  StateFiles(const StateFiles&) = delete;
  StateFiles& operator=(const StateFiles&) = delete;

  bool sizes_only() const { return options_.sizes_only; }
  int slices() const { return static_cast<int>(slices_.size()); }
  const SlotLayout& layout(int slice) const { return slices_[slice].layout; }
  /// Chunks are numbered across all slices.
  int first_chunk(int slice) const { return slices_[slice].first_chunk; }
  int chunks() const { return static_cast<int>(chunks_.size()); }

  // The functions below throw TrainingError, which names folder, slice and rank, if an I/O operation fails.
  // From then on the object is unusable.

  /// Sets the order in which chunks will be opened from now on, so that they can be read ahead.
  void plan(std::span<const int> chunks);
  /// Returns the chunk's memory; layout() has the offsets of the states in it. The memory is valid until
  /// close() has been called as often as open(). With `overwrites` the caller must write all states, and
  /// nothing is read from the file.
  std::byte* open(int chunk, bool overwrites = false);
  /// If `changed`, the chunk's memory is written to the next generation.
  void close(int chunk, bool changed);
  /// Returns when all changes are in the files and the generation is complete.
  void finish_generation();
  /// Lends the last complete generation. No chunk of the slice may have changed since that generation. Throws
  /// UserError if the disk has no room for the replacement file; the state is then unchanged.
  LentSlot lend(int slice);

  // The next two functions return the numbers of bytes read and written since construction.
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }
  int64_t buffer_bytes() const;
  /// The total size of all slots.
  int64_t file_bytes() const;
  const char* transfers() const { return transfers_->name(); }

 private:
  struct Slot {
    std::shared_ptr<checkpoint::OpenFile> file;
    std::shared_ptr<std::atomic<int>> readers = std::make_shared<std::atomic<int>>(0);  // number of borrowers
    std::vector<uint64_t> checksums = {};                                               // by block
    std::shared_ptr<checkpoint::OpenFile> replacement =
        nullptr;  // set by lend(), unset by the next write to the slot
  };
  struct Slice {
    SliceContents contents;
    SlotLayout layout;
    int first_chunk;
    Slot slots[2];
    int complete = -1;  // slot with the last complete generation; -1: none, state is initial
    int64_t generation = 0;
    int changed = 0;  // number of chunks that the next generation already has
    int next() const { return complete == 0 ? 1 : 0; }
  };
  struct ChunkState {
    int slice;
    int index;
    int buffer = -1;          // the buffer that holds the chunk; -1: none
    bool is_in_next = false;  // the next generation already has the chunk
  };
  enum class Use { none, reading, ready, writing };
  struct Buffer {
    std::byte* memory;
    Use use = Use::none;
    int chunk = -1;
    int opened = 0;
    bool is_changed = false;  // the chunk has changed, and its write has not started
    int requests = 0;         // number of requests in flight
    std::optional<TimelineTransfer> recorded = {};
    int64_t last_opened = 0;
  };
  struct Request {
    int buffer;
    WholeTransfer whole;
  };
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };

  const Chunk& place(int chunk) const;
  std::span<std::byte> bytes_of(int buffer) const;
  std::string label(int chunk) const;
  [[noreturn]] void fail(int chunk, const std::string& what);
  void check_not_failed() const;

  std::shared_ptr<checkpoint::OpenFile> make_file(const SlotLayout& layout) const;
  void fill(int chunk, std::byte* memory) const;
  int find_buffer(bool only_unplanned) const;
  void note_opened(int chunk);
  bool is_planned(int chunk) const;
  int take_buffer();
  void load(int chunk, int buffer, bool overwrites = false);
  void write(int buffer);
  void start(int buffer, checkpoint::OpenFile& file, bool writes);
  void read_ahead();
  void await(int buffer);
  void finish_one(int awaited, std::chrono::steady_clock::time_point deadline);
  void finish(const TransferDone& done);
  void check_read(int buffer);

  checkpoint::FileSystem* files_;
  HomeProcess home_;
  StateFilesOptions options_;
  std::vector<Slice> slices_;
  std::vector<ChunkState> chunks_;
  std::unique_ptr<std::byte, Unmap> memory_;
  std::shared_ptr<void> pinned_;  // keeps `memory_` page-locked
  int64_t bytes_of_a_buffer_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Request> requests_;
  std::vector<int> free_requests_;
  std::vector<int> plan_;
  size_t opened_of_plan_ = 0;
  size_t read_of_plan_ = 0;
  int64_t opens_ = 0;
  int64_t read_bytes_ = 0;
  int64_t written_bytes_ = 0;
  std::string failure_;
  std::unique_ptr<Transfers> transfers_;  // last member, so it is destroyed before the memory it uses
};

}  // namespace zerorun
