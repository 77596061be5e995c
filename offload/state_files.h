// The state of slices whose home is files: chunks of it come to a few buffers in memory around their use,
// read ahead and written behind. Used by one thread at a time.
//
// [Note: generations] A slice has two slots, files of equal layout. What a step changes goes to the slot that
// does not have the last complete generation; finish_generation() returns when all of it is written, and then
// the slots change roles. So a complete generation is there at any time, and checkpoints link to it
// (lend()); a slot that was lent is not written again, for which another is made when it is lent, unless it
// got no name and nobody has it any more. Slots have no names: whatever ends the process, nothing is left.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/process.h"
#include "checkpoint/file_system.h"
#include "checkpoint/state_file.h"
#include "offload/slot_layout.h"
#include "offload/transfers.h"

namespace zerorun {

struct StateFilesOptions {
  std::filesystem::path folder;  // which is there
  int rank = 0;                  // for messages
  int buffers = 4;               // each for one chunk; at least kFewestBuffers are made
  int64_t chunk_bytes = 0;       // a multiple of kChecksumBlock
  int64_t request_bytes = 0;     // of one read or write, whole pages
  int64_t alignment = 16;        // elements; of the parts of slices
  int threads = 1;               // where there is no io_uring
  std::function<std::unique_ptr<Transfers>(FileSystem&, int most, int threads)> open = open_transfers;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

inline constexpr int kFewestBuffers = 3;  // one in use, one being read, one being written

/// A complete generation of a slice, in a file that nobody writes to any more.
struct LentSlot {
  std::shared_ptr<OpenFile> file;
  StateFileFacts facts;
};

class StateFiles {
 public:
  /// Makes the slots, with room for all that will be in them. `files` outlives it. Throws UserError where
  /// that cannot be done.
  StateFiles(FileSystem& files, StateFilesOptions options, std::vector<SliceContents> slices);
  /// Waits for what is under way.
  ~StateFiles();
  StateFiles(const StateFiles&) = delete;
  StateFiles& operator=(const StateFiles&) = delete;

  int slices() const { return static_cast<int>(slices_.size()); }
  const SlotLayout& layout(int slice) const { return slices_[slice].layout; }
  /// Chunks are numbered through all slices.
  int first_chunk(int slice) const { return slices_[slice].first_chunk; }
  int chunks() const { return static_cast<int>(chunks_.size()); }

  // All that follow throw TrainingError, naming file system, slice and rank, when a disk fails; then nothing
  // else can be done with it.

  /// The order in which chunks will be opened from now on: they are read ahead.
  void plan(std::span<const int> chunks);
  /// The chunk's memory, whose states lie where layout() says, until it is closed as often as it was opened.
  /// `overwrites`: all of them are about to be written, so that nothing is read for it.
  std::byte* open(int chunk, bool overwrites = false);
  /// `changed`: what is in memory now goes to the next generation.
  void close(int chunk, bool changed);
  /// Returns when all that was changed is in files, and complete.
  void finish_generation();
  /// The last complete generation. Nothing may have changed since. Throws UserError too, where there is no
  /// room for the file that takes its place; then all is as it was.
  LentSlot lend(int slice);

  // Since it was made.
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }
  int64_t buffer_bytes() const;
  /// Of all slots.
  int64_t file_bytes() const;
  const char* transfers() const { return transfers_->name(); }

 private:
  struct Slot {
    std::shared_ptr<OpenFile> file;
    std::vector<uint64_t> checksums = {};             // by block
    std::shared_ptr<OpenFile> replacement = nullptr;  // where the file is lent
  };
  struct Slice {
    SliceContents contents;
    SlotLayout layout;
    int first_chunk;
    Slot slots[2];
    int complete = -1;  // the slot of the last complete generation; -1: as it begins, in no file
    int64_t generation = 0;
    int changed = 0;  // chunks that the next generation has
    int next() const { return complete == 0 ? 1 : 0; }
  };
  struct ChunkState {
    int slice;
    int index;
    int buffer = -1;          // where it is in memory
    bool is_in_next = false;  // the next generation has it
  };
  enum class Use { none, reading, ready, writing };
  struct Buffer {
    std::byte* memory;
    Use use = Use::none;
    int chunk = -1;
    int opened = 0;
    bool is_changed = false;  // and not on its way to the file
    int requests = 0;         // under way
    int64_t last_opened = 0;
  };
  struct Request {
    int buffer;
    Transfer transfer;
    int retries = 0;
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

  std::shared_ptr<OpenFile> make_file(const SlotLayout& layout) const;
  void fill(int chunk, std::byte* memory) const;
  int find_buffer(bool only_unplanned) const;
  void note_opened(int chunk);
  bool is_planned(int chunk) const;
  int take_buffer();
  void load(int chunk, int buffer, bool overwrites = false);
  void write(int buffer);
  void start(int buffer, OpenFile& file, bool writes);
  void read_ahead();
  void await(int buffer);
  void finish_one(int awaited, std::chrono::steady_clock::time_point deadline);
  void finish(const TransferDone& done);
  void check_read(int buffer);

  FileSystem* files_;
  HomeProcess home_;
  StateFilesOptions options_;
  std::vector<Slice> slices_;
  std::vector<ChunkState> chunks_;
  std::unique_ptr<std::byte, Unmap> memory_;
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
  std::unique_ptr<Transfers> transfers_;  // ends before the memory that it writes to
};

}  // namespace zerorun
