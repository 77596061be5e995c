#include "checkpoint/state_file.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "checkpoint/checksums.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

using AlignedBytes = std::unique_ptr<std::byte[], void (*)(void*)>;

// Page-aligned memory, as O_DIRECT requires.
AlignedBytes aligned_bytes(int64_t bytes) {
  AlignedBytes memory(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)), std::free);
  if (!memory) throw std::bad_alloc();
  return memory;
}

// Collects bytes in blocks, computes the checksum of each block while the block is in the cache, and writes
// several blocks at a time.
class BlockWriter {
 public:
  BlockWriter(OpenFile& file, const std::function<void(int64_t)>& progress)
      : file_(&file), progress_(&progress), buffer_(aligned_bytes(kWriteBytes)) {}

  void add(std::span<const std::byte> bytes) {
    fill(static_cast<int64_t>(bytes.size()), [&](int64_t from, std::span<std::byte> into) {
      std::memcpy(into.data(), bytes.data() + from, into.size());
    });
  }
  void add(MemorySnapshot& source, int64_t offset, int64_t bytes) {
    fill(bytes, [&](int64_t from, std::span<std::byte> into) { source.take(offset + from, into); });
  }
  /// Adds zeros until the file has `bytes` bytes.
  void pad_to(int64_t bytes) {
    fill(bytes - written_ - filled_,
         [](int64_t, std::span<std::byte> into) { std::memset(into.data(), 0, into.size()); });
  }
  void flush() {
    if (filled_ % kChecksumBlock != 0) end_block();
    if (filled_ == 0) return;
    file_->write({buffer_.get(), static_cast<size_t>(filled_)}, written_);
    written_ += filled_;
    (*progress_)(filled_);
    filled_ = 0;
  }

  int64_t written() const { return written_; }
  std::vector<uint64_t> take_checksums() { return std::move(checksums_); }

 private:
  static constexpr int64_t kWriteBytes = 4 * kChecksumBlock;

  // Appends `bytes` bytes of a source, part by part. give(from, into) must fill `into` with the source's
  // bytes that start at offset `from`.
  template <typename Give>
  void fill(int64_t bytes, const Give& give) {
    for (int64_t from = 0; from < bytes;) {
      const int64_t count = std::min(bytes - from, kChecksumBlock - filled_ % kChecksumBlock);
      give(from, std::span(buffer_.get() + filled_, static_cast<size_t>(count)));
      from += count;
      filled_ += count;
      if (filled_ % kChecksumBlock == 0) end_block();
      if (filled_ == kWriteBytes) flush();
    }
  }

  void end_block() {
    const int64_t begin = (filled_ - 1) / kChecksumBlock * kChecksumBlock;
    checksums_.push_back(checksum_of({buffer_.get() + begin, static_cast<size_t>(filled_ - begin)}));
  }

  OpenFile* file_;
  const std::function<void(int64_t)>* progress_;
  AlignedBytes buffer_;
  int64_t filled_ = 0;  // number of bytes in the buffer
  std::vector<uint64_t> checksums_;
  int64_t written_ = 0;
};

}  // namespace

int64_t FileToWrite::bytes() const {
  int64_t bytes = slot_facts.bytes;
  for (const RangeToWrite& range : ranges) bytes += range.range.numel * element_bytes(range.range.dtype);
  return bytes;
}

namespace {

void write_slot(FileSystem& files, const fs::path& path, const FileToWrite& file,
                const std::function<void(int64_t)>& written) {
  if (file.slot->link(path)) {
    file.slot->sync();
    written(file.slot_facts.bytes);
    return;
  }
  OpenFile copy = OpenFile::create(files, path, Caching::direct);
  const AlignedBytes block = aligned_bytes(kChecksumBlock);
  for (int64_t begin = 0; begin < file.slot_facts.bytes; begin += kChecksumBlock) {
    const int64_t count = std::min(kChecksumBlock, file.slot_facts.bytes - begin);
    const std::span<std::byte> bytes(block.get(), static_cast<size_t>(count));
    file.slot->read(bytes, begin);
    if (checksum_of(bytes) != file.slot_facts.checksums.at(static_cast<size_t>(begin / kChecksumBlock))) {
      throw UserError("the offloaded state that " + path.string() +
                      " is to have is not what was written (another checksum): the disk of " +
                      file.slot->path().string() + " is damaged; load an earlier checkpoint");
    }
    copy.write(bytes, begin);
    written(count);
  }
  copy.sync();
}

}  // namespace

namespace {

// Links the published file, if it is still the one that was written under its path.
bool link_published(FileSystem& files, const fs::path& name, const PublishedFile& published) {
  if (!published.identity || files.link(published.path, name) != 0) return false;
  if (files.identity(name) == published.identity) return true;
  check_done(files.remove_file(name), name, "removed");
  return false;
}

}  // namespace

StateFileFacts write_state_file(FileSystem& files, const fs::path& folder, const FileToWrite& file,
                                const std::function<void(int64_t)>& written) {
  if (file.published && link_published(files, folder / file.name, *file.published)) {
    written(file.bytes());
    return file.published->facts;
  }
  if (file.slot) {
    write_slot(files, folder / file.name, file, written);
    return file.slot_facts;
  }
  StateFileFacts facts;
  for (const RangeToWrite& range : file.ranges) facts.ranges.push_back(range.range);
  const int64_t data_bytes = pack(facts.ranges);
  const std::string header = state_header(file.metadata, facts.ranges, data_bytes);
  for (StateRange& range : facts.ranges) range.offset += static_cast<int64_t>(header.size());
  OpenFile opened = OpenFile::create(files, folder / file.name, Caching::direct);
  BlockWriter writer(opened, written);
  writer.add(std::as_bytes(std::span(header)));
  for (size_t index = 0; index < file.ranges.size(); ++index) {
    const auto& [range, source, source_offset] = file.ranges[index];
    writer.pad_to(facts.ranges[index].offset);
    writer.add(*source, source_offset, range.numel * element_bytes(range.dtype));
  }
  writer.pad_to(static_cast<int64_t>(header.size()) + data_bytes);
  writer.flush();
  opened.sync();
  facts.bytes = writer.written();
  facts.checksums = writer.take_checksums();
  if (file.published && facts != file.published->facts) {
    throw UserError((folder / file.name).string() +
                    ": frozen parameters were modified while the checkpoint was written, and the earlier "
                    "file with their values cannot be linked: save again");
  }
  return facts;
}

StateFileReader::StateFileReader(FileSystem& files, const fs::path& path, StateFileFacts facts)
    : file_(OpenFile::open(files, path)), facts_(std::move(facts)) {
  const int64_t bytes = file_.size();
  if (bytes == facts_.bytes) return;
  throw UserError(path.string() + " has " + std::to_string(bytes) + " bytes, and the manifest says " +
                  std::to_string(facts_.bytes) + ": the checkpoint is damaged, load another one");
}

std::span<const std::byte> StateFileReader::block(int64_t index) {
  if (index == block_index_) return block_;
  const int64_t begin = index * kChecksumBlock;
  block_index_ = -1;
  block_.resize(static_cast<size_t>(std::min(kChecksumBlock, facts_.bytes - begin)));
  file_.read(block_, begin);
  bytes_read_ += static_cast<int64_t>(block_.size());
  if (checksum_of(block_) != facts_.checksums.at(static_cast<size_t>(index))) {
    throw UserError(
        file_.path().string() + ": bytes " + std::to_string(begin) + " to " +
        std::to_string(begin + static_cast<int64_t>(block_.size())) +
        " are not what was written (another checksum): the checkpoint is damaged, load another one");
  }
  block_index_ = index;
  return block_;
}

void StateFileReader::read(const StateRange& range, int64_t begin, std::span<std::byte> into) {
  const int64_t size = element_bytes(range.dtype);
  const auto bytes = static_cast<int64_t>(into.size());
  ZR_CHECK(begin >= range.begin && (begin - range.begin) * size + bytes <= range.numel * size,
           range.parameter + ":" + range.state);
  int64_t from = range.offset + (begin - range.begin) * size;
  while (!into.empty()) {
    const int64_t within = from % kChecksumBlock;
    const std::span<const std::byte> rest = block(from / kChecksumBlock).subspan(static_cast<size_t>(within));
    const size_t count = std::min(rest.size(), into.size());
    std::ranges::copy(rest.first(count), into.begin());
    into = into.subspan(count);
    from += static_cast<int64_t>(count);
  }
}

}  // namespace zerorun::checkpoint
