#include "checkpoint/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors_dtype.h"

namespace zerorun {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are read and written as they lie in memory");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the format
constexpr const char* kMetadata = "__metadata__";

// Returns the size of a tensor in bytes; absent if it does not fit into 64 bits.
std::optional<uint64_t> byte_size(int64_t element_bytes, const std::vector<int64_t>& shape) {
  auto bytes = static_cast<uint64_t>(element_bytes);
  for (int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return std::nullopt;
  }
  return bytes;
}

// Throws UserError unless the dtype is known and the tensor's size matches its offsets.
void check_size(const TensorInfo& info, const std::string& where) {
  const std::optional<int64_t> element_bytes = bytes_per_element(info.dtype);
  if (!element_bytes) throw UserError(where + "unknown dtype '" + info.dtype + "'");
  const std::optional<uint64_t> bytes = byte_size(*element_bytes, info.shape);
  if (info.begin <= info.end && bytes == info.end - info.begin) return;
  throw UserError(where + to_string(info) + " takes " + (bytes ? std::to_string(*bytes) : "more than 2^64") +
                  " bytes, but its data_offsets are [" + std::to_string(info.begin) + ", " +
                  std::to_string(info.end) + "]");
}

// Reads a header without building a JSON document. So the time and memory for a malicious header are at
// most proportional to its length.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::map<std::string, TensorInfo> take() && { return std::move(tensors_); }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(json::number_integer_t) override { return value(); }
  bool number_float(json::number_float_t, const std::string&) override { return value(); }
  bool binary(json::binary_t&) override { return value(); }
  bool number_unsigned(json::number_unsigned_t number) override {
    if (part_ != Part::shape && part_ != Part::offsets) return value();
    if (number >= uint64_t{1} << 62) fail();
    (part_ == Part::shape ? info_.shape : offsets_).push_back(static_cast<int64_t>(number));
    return true;
  }
  bool string(std::string& text) override {
    if (part_ != Part::tensor || key_ != "dtype") return value();
    info_.dtype = std::move(text);
    return true;
  }
  bool start_object(size_t) override {
    switch (part_) {
      case Part::outside:
        part_ = Part::header;
        return true;
      case Part::header:
        part_ = name_ == kMetadata ? Part::metadata : Part::tensor;
        depth_ = 1;
        return true;
      case Part::metadata:
        ++depth_;
        return true;
      default:
        fail();
    }
  }
  bool key(std::string& key) override {
    if (part_ == Part::header) return begin_entry(key);
    if (part_ != Part::tensor) return true;
    key_ = std::move(key);
    if (!keys_.insert(key_).second) fail();
    return true;
  }
  bool end_object() override {
    if (part_ == Part::metadata && --depth_ == 0) part_ = Part::header;
    if (part_ == Part::tensor) end_tensor();
    return true;
  }
  bool start_array(size_t) override {
    if (part_ == Part::metadata) {
      ++depth_;
    } else if (part_ == Part::tensor && (key_ == "shape" || key_ == "data_offsets")) {
      part_ = key_ == "shape" ? Part::shape : Part::offsets;
    } else {
      fail();
    }
    return true;
  }
  bool end_array() override {
    if (part_ == Part::metadata) --depth_;
    if (part_ == Part::shape || part_ == Part::offsets) part_ = Part::tensor;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    throw UserError(where_ + "the header is not valid JSON: " + error.what());
  }

 private:
  enum class Part { outside, header, metadata, tensor, shape, offsets };

  [[noreturn]] void fail() const {
    if (part_ == Part::outside) throw UserError(where_ + "the header is not a JSON object");
    throw UserError(tensor_place() + "expected dtype, shape and two data_offsets, and nothing else");
  }
  std::string tensor_place() const { return where_ + "tensor '" + name_ + "': "; }

  // Called for a value that is valid only in the metadata. Throws if the value is elsewhere.
  bool value() const {
    if (part_ != Part::metadata) fail();
    return true;
  }

  bool begin_entry(std::string& name) {
    name_ = std::move(name);
    const bool is_known = name_ == kMetadata ? std::exchange(has_metadata_, true) : tensors_.contains(name_);
    if (is_known) throw UserError(where_ + "tensor '" + name_ + "' appears twice");
    info_ = {};
    offsets_.clear();
    keys_.clear();
    return true;
  }

  void end_tensor() {
    if (keys_ != std::set<std::string>{"data_offsets", "dtype", "shape"} || offsets_.size() != 2) fail();
    info_.begin = static_cast<uint64_t>(offsets_[0]);
    info_.end = static_cast<uint64_t>(offsets_[1]);
    check_size(info_, tensor_place());
    tensors_.emplace(name_, std::move(info_));
    part_ = Part::header;
  }

  const std::string& where_;
  std::map<std::string, TensorInfo> tensors_;
  Part part_ = Part::outside;
  int64_t depth_ = 0;  // nesting depth in the metadata
  bool has_metadata_ = false;
  std::string name_;  // name of the current entry
  std::string key_;   // key that was read last in a tensor's entry
  std::set<std::string> keys_;
  TensorInfo info_;
  std::vector<int64_t> offsets_;
};

// Throws UserError unless the tensors cover the data exactly once, without overlaps and gaps.
void check_coverage(const std::map<std::string, TensorInfo>& tensors, uint64_t data_bytes,
                    const std::string& where) {
  std::vector<const std::pair<const std::string, TensorInfo>*> by_offset;
  for (const auto& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = 0;
  for (const auto* tensor : by_offset) {
    const auto& [name, info] = *tensor;
    if (info.end > data_bytes) {
      throw UserError(where + "the file is cut off: tensor '" + name + "' ends at byte " +
                      std::to_string(info.end) + " of the data, the file holds " +
                      std::to_string(data_bytes));
    }
    if (info.begin != covered) {
      throw UserError(where + "tensor '" + name + "' starts at byte " + std::to_string(info.begin) +
                      " of the data, " +
                      (info.begin < covered ? "inside the tensor before it" : "after a hole") +
                      ": expected " + std::to_string(covered));
    }
    covered = info.end;
  }
  if (covered != data_bytes) {
    throw UserError(where + std::to_string(data_bytes - covered) + " bytes at the end belong to no tensor");
  }
}

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Opens a file that must exist. Throws UserError.
checkpoint::OpenFile open_file(checkpoint::FileSystem& files, const fs::path& path) {
  const int number = files.open(path);
  if (number == -ENOENT) throw UserError(path.string() + ": no such file (expected a .safetensors file)");
  checkpoint::check_done(number, path, "opened");
  files.close(number);
  return checkpoint::OpenFile::open(files, path);
}

// Returns the distinct files that an index names. Throws UserError for a file outside the folder.
std::set<std::string> files_of_index(const json& index, const std::string& where) {
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) throw UserError(where + "expected a \"weight_map\"");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const auto* name = file.get_ptr<const std::string*>();
    if (!name || name->empty() || name->front() == '.' || name->find('/') != std::string::npos)
      throw UserError(where + "tensor '" + tensor + "': expected the name of a file in this folder");
    names.insert(*name);
  }
  return names;
}

}  // namespace

std::string to_string(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (int64_t dimension : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  return text + "]";
}

std::string to_string(const TensorInfo& info) {
  return info.dtype + " " + to_string(info.shape);
}

SafetensorsReader::SafetensorsReader(const fs::path& path, checkpoint::FileSystem& files) {
  const auto names = files.list(path);
  auto has = [&](const char* name) { return std::ranges::find(*names, name) != names->end(); };
  if (!names) {
    add_file(files, path);
  } else if (has(kModelFile)) {
    add_file(files, path / kModelFile);
  } else if (has(kIndexFile)) {
    add_indexed_files(files, path / kIndexFile);
  } else {
    throw UserError(path.string() + ": expected a .safetensors file, or a folder with " + kModelFile +
                    " or " + kIndexFile);
  }
}

void SafetensorsReader::add_indexed_files(checkpoint::FileSystem& files, const fs::path& path) {
  const std::string where = path.string() + ": ";
  const json index = json::parse(read_text(files, path).value_or(""), nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded()) throw UserError(where + "not valid JSON");
  for (const std::string& name : files_of_index(index, where)) add_file(files, path.parent_path() / name);
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || file_of(found->second).filename() != file.get_ref<const std::string&>())
      throw UserError(where + "tensor '" + tensor + "' is not in " + file.get<std::string>());
  }
}

void SafetensorsReader::add_file(checkpoint::FileSystem& files, const fs::path& path) {
  const std::string where = path.string() + ": ";
  files_.push_back(open_file(files, path));
  const checkpoint::OpenFile& file = files_.back();
  const auto file_bytes = static_cast<uint64_t>(file.size());
  std::array<std::byte, kLengthBytes> length_bytes{};
  if (file_bytes < kLengthBytes) {
    throw UserError(where + "not a safetensors file: it has " + std::to_string(file_bytes) + " bytes");
  }
  file.read(length_bytes, 0);
  const auto header_bytes = std::bit_cast<uint64_t>(length_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    throw UserError(where + "not a safetensors file, or cut off: its first 8 bytes announce a header of " +
                    std::to_string(header_bytes) + " bytes, the file has " + std::to_string(file_bytes));
  }
  std::string text(header_bytes, '\0');
  file.read(std::as_writable_bytes(std::span(text)), kLengthBytes);
  HeaderReader header(where);
  json::sax_parse(text, &header);
  std::map<std::string, TensorInfo> tensors = std::move(header).take();
  for (auto& [name, info] : tensors) info.file = files_.size() - 1;
  data_starts_.push_back(kLengthBytes + header_bytes);
  check_coverage(tensors, file_bytes - data_starts_.back(), where);
  for (auto& [name, info] : tensors) {
    const auto [present, is_new] = tensors_.emplace(name, std::move(info));
    if (!is_new)
      throw UserError(where + "tensor '" + name + "' is in " + file_of(present->second).string() + " too");
  }
}

std::vector<std::byte> SafetensorsReader::read(const std::string& name) const {
  const TensorInfo& info = tensors_.at(name);
  std::vector<std::byte> bytes(info.end - info.begin);
  read(info, 0, bytes);
  return bytes;
}

void SafetensorsReader::read(const TensorInfo& info, uint64_t begin, std::span<std::byte> into) const {
  ZR_CHECK(begin <= info.end - info.begin && into.size() <= info.end - info.begin - begin, to_string(info));
  files_[info.file].read(into, static_cast<int64_t>(data_starts_[info.file] + info.begin + begin));
}

}  // namespace zerorun
