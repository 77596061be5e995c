#include "checkpoint/state_file.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/checksums.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

constexpr int64_t kDataAlignment = kPageBytes;  // of the data's start and of its end
constexpr int64_t kTensorAlignment = 64;        // of each tensor's
constexpr int64_t kLengthBytes = 8;

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

nlohmann::json entry_of(const std::string& dtype, int64_t numel, int64_t begin, int64_t end) {
  return {{"dtype", dtype}, {"shape", {numel}}, {"data_offsets", {begin, end}}};
}

// The header's text, padded, with its length in front. Offsets in `ranges` become those in the file.
std::string make_header(const std::map<std::string, std::string>& metadata, std::vector<StateRange>& ranges,
                        int64_t& data_bytes) {
  nlohmann::json header = {{"__metadata__", metadata}};
  int64_t end = 0;
  int paddings = 0;
  auto pad_to = [&](int64_t begin) {
    if (begin > end)
      header["padding." + std::to_string(paddings++)] = entry_of("U8", begin - end, end, begin);
    end = begin;
  };
  for (StateRange& range : ranges) {
    const int64_t begin = rounded_up(end, kTensorAlignment);
    pad_to(begin);
    end = begin + range.numel * element_bytes(range.dtype);
    range.offset = begin;
    const std::string name = range.parameter + ":" + range.state + "@" + std::to_string(range.begin);
    ZR_CHECK(!header.contains(name), name + " is in the file twice");
    header[name] = entry_of(range.dtype, range.numel, begin, end);
  }
  pad_to(rounded_up(end, kDataAlignment));
  std::string text = header.dump();
  const int64_t data_start = rounded_up(kLengthBytes + static_cast<int64_t>(text.size()), kDataAlignment);
  text.resize(static_cast<size_t>(data_start - kLengthBytes), ' ');
  for (StateRange& range : ranges) range.offset += data_start;
  data_bytes = end;
  std::string whole(kLengthBytes, '\0');
  const uint64_t length = text.size();
  std::memcpy(whole.data(), &length, sizeof length);
  return whole + text;
}

// Gathers bytes into blocks, each of which has its checksum taken while it is in the cache; a few are written
// at a time.
class BlockWriter {
 public:
  BlockWriter(OpenFile& file, const std::function<void(int64_t)>& progress)
      : file_(&file),
        progress_(&progress),
        buffer_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kWriteBytes)), std::free) {
    if (!buffer_) throw std::bad_alloc();
  }

  void add(std::span<const std::byte> bytes) {
    fill(static_cast<int64_t>(bytes.size()), [&](int64_t from, std::span<std::byte> into) {
      std::memcpy(into.data(), bytes.data() + from, into.size());
    });
  }
  void add(PinnedBytes& source, int64_t offset, int64_t bytes) {
    fill(bytes, [&](int64_t from, std::span<std::byte> into) { source.take(offset + from, into); });
  }
  /// Zeros until the file has so many bytes.
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

  // `give(from, into)`: `into` gets what is to come from `from` on.
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
  std::unique_ptr<std::byte[], void (*)(void*)> buffer_;
  int64_t filled_ = 0;  // of the buffer
  std::vector<uint64_t> checksums_;
  int64_t written_ = 0;
};

}  // namespace

int64_t element_bytes(const std::string& dtype) {
  static constexpr std::pair<std::string_view, int64_t> kSizes[] = {
      {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"F64", 8}, {"I64", 8},
      {"I32", 4}, {"I16", 2},  {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) return bytes;
  }
  throw UserError("dtype \"" + dtype + "\": not one that ZeroRun saves");
}

int64_t FileToWrite::bytes() const {
  int64_t bytes = 0;
  for (const RangeToWrite& range : ranges) bytes += range.range.numel * element_bytes(range.range.dtype);
  return bytes;
}

StateFileFacts write_state_file(FileSystem& files, const fs::path& folder, const FileToWrite& file,
                                const std::function<void(int64_t)>& written) {
  if (file.published && files.link(file.published->path, folder / file.name) == 0) {
    written(file.bytes());
    return file.published->facts;
  }
  StateFileFacts facts;
  for (const RangeToWrite& range : file.ranges) facts.ranges.push_back(range.range);
  int64_t data_bytes = 0;
  const std::string header = make_header(file.metadata, facts.ranges, data_bytes);
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
                    ": what is frozen was written to while the checkpoint was, and the earlier file that has "
                    "its values cannot be linked: save once more");
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

}  // namespace zerorun
