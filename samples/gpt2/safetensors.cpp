#include "samples/gpt2/safetensors.h"

#include <unistd.h>
#include <zerorun/program.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace zerorun {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are read and written as they lie in memory");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

std::optional<uint64_t> element_size(std::string_view dtype) {
  static constexpr std::pair<std::string_view, uint64_t> kSizes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return std::nullopt;
}

// Bytes of a tensor; nothing when they do not fit into 64 bits.
std::optional<uint64_t> byte_size(uint64_t element_bytes, const std::vector<int64_t>& shape) {
  uint64_t bytes = element_bytes;
  for (int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return std::nullopt;
  }
  return bytes;
}

json parse_header(const std::string& text, const std::string& where) {
  std::set<std::string> names;
  auto refuse_duplicates = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key && !names.insert(parsed.get<std::string>()).second) {
      throw UserError(where + "tensor '" + parsed.get<std::string>() + "' is there twice");
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, refuse_duplicates);
  } catch (const json::exception& error) {
    throw UserError(where + "the header is not valid JSON: " + error.what());
  }
  if (!header.is_object()) throw UserError(where + "the header is not a JSON object");
  return header;
}

TensorInfo parse_tensor(const json& entry, const std::string& where) {
  auto is_count = [](const json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < 1ull << 62;
  };
  auto are_counts = [&](const json& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is_count);
  };
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !are_counts(entry["shape"]) || !entry.contains("data_offsets") ||
      !are_counts(entry["data_offsets"]) || entry["data_offsets"].size() != 2) {
    throw UserError(where + "expected dtype, shape and two data_offsets, found " +
                    entry.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 200));
  }
  TensorInfo info{entry["dtype"].get<std::string>(), entry["shape"].get<std::vector<int64_t>>(),
                  entry["data_offsets"][0].get<uint64_t>(), entry["data_offsets"][1].get<uint64_t>()};
  const std::optional<uint64_t> element_bytes = element_size(info.dtype);
  if (!element_bytes) throw UserError(where + "unknown dtype '" + info.dtype + "'");
  const std::optional<uint64_t> bytes = byte_size(*element_bytes, info.shape);
  if (info.begin > info.end || bytes != info.end - info.begin) {
    throw UserError(where + to_string(info) + " takes " +
                    (bytes ? std::to_string(*bytes) : "more than 2^64") +
                    " bytes, but its data_offsets are [" + std::to_string(info.begin) + ", " +
                    std::to_string(info.end) + "]");
  }
  return info;
}

// Throws UserError unless the tensors cover the data once: no overlap, no hole, nothing left over.
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

// Returns 0, or the errno of what failed.
int write_pieces(const fs::path& file, const std::vector<std::span<const std::byte>>& pieces) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "wb"), std::fclose);
  if (!stream) return errno;
  for (const auto& piece : pieces) {
    if (!piece.empty() && std::fwrite(piece.data(), 1, piece.size(), stream.get()) != piece.size())
      return errno;
  }
  if (std::fflush(stream.get()) != 0 || ::fsync(::fileno(stream.get())) != 0) return errno;
  return std::fclose(stream.release()) == 0 ? 0 : errno;
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

SafetensorsReader::SafetensorsReader(fs::path file) : file_(std::move(file)) {
  const std::string where = file_.string() + ": ";
  std::error_code error;
  const fs::file_status status = fs::status(file_, error);
  if (!fs::exists(status)) throw UserError(where + "no such file (expected a .safetensors file)");
  if (!fs::is_regular_file(status)) throw UserError(where + "not a file (expected a .safetensors file)");
  stream_.open(file_, std::ios::binary);
  if (!stream_) throw UserError(where + "cannot be opened: " + std::strerror(errno));
  const uint64_t file_bytes = fs::file_size(file_);

  std::array<char, kLengthBytes> length_bytes{};
  if (file_bytes < kLengthBytes || !stream_.read(length_bytes.data(), kLengthBytes)) {
    throw UserError(where + "not a safetensors file: it has " + std::to_string(file_bytes) + " bytes");
  }
  const auto header_bytes = std::bit_cast<uint64_t>(length_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    throw UserError(where + "not a safetensors file, or cut off: its first 8 bytes announce a header of " +
                    std::to_string(header_bytes) + " bytes, the file has " + std::to_string(file_bytes));
  }
  std::string text(header_bytes, '\0');
  if (!stream_.read(text.data(), static_cast<std::streamsize>(header_bytes))) {
    throw UserError(where + "cannot be read: " + std::strerror(errno));
  }
  const json header = parse_header(text, where);
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) continue;
    tensors_.emplace(name, parse_tensor(entry, where + "tensor '" + name + "': "));
  }
  data_start_ = kLengthBytes + header_bytes;
  check_coverage(tensors_, file_bytes - data_start_, where);
}

std::vector<std::byte> SafetensorsReader::read(const std::string& name) {
  const TensorInfo& info = tensors_.at(name);
  std::vector<std::byte> bytes(info.end - info.begin);
  stream_.seekg(static_cast<std::streamoff>(data_start_ + info.begin));
  if (!stream_.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()))) {
    throw UserError(file_.string() + ": tensor '" + name +
                    "' cannot be read: the file has changed meanwhile");
  }
  return bytes;
}

void write_safetensors(const fs::path& file, const std::map<std::string, TensorToWrite>& tensors) {
  json header = {{kMetadata, {{"format", "pt"}}}};  // Hugging Face's loader insists on this entry
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<uint64_t> element_bytes = element_size(tensor.dtype);
    ZR_CHECK(element_bytes && byte_size(*element_bytes, tensor.shape) == tensor.bytes.size(), name);
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.bytes.size()}}};
    end += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned
  const uint64_t header_bytes = text.size();

  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(&header_bytes, 1)),
                                                    std::as_bytes(std::span(text))};
  for (const auto& [name, tensor] : tensors) pieces.push_back(tensor.bytes);
  const fs::path temporary = file.string() + ".tmp" + std::to_string(::getpid());
  int error = write_pieces(temporary, pieces);
  if (error == 0 && std::rename(temporary.c_str(), file.c_str()) != 0) error = errno;
  if (error != 0) {
    std::remove(temporary.c_str());
    throw UserError(file.string() + ": cannot be written: " + std::strerror(error));
  }
}

}  // namespace zerorun
