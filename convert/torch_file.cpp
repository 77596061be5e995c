#include "convert/torch_file.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/state_header.h"

namespace zerorun::convert {
namespace {

constexpr std::string_view kPickleEntry = "data.pkl";

// Returns the name of the archive's folder that contains all entries written by torch.save. PyTorch names the
// folder after the file that it writes.
std::string prefix_of(const ZipArchive& archive) {
  for (const auto& [name, entry] : archive.entries()) {
    if (name.size() > kPickleEntry.size() && name.ends_with(kPickleEntry) &&
        name.find('/') == name.size() - kPickleEntry.size() - 1)
      return name.substr(0, name.size() - kPickleEntry.size());
  }
  throw UserError(
      archive.path().string() +
      ": not a file of torch.save: the archive has no data.pkl (TorchScript files are not supported)");
}

std::vector<std::byte> read_entry(const ZipArchive& archive, const std::string& name) {
  archive.verify(name);
  const ZipEntry& entry = archive.entries().at(name);
  std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes));
  archive.read(entry, 0, bytes);
  return bytes;
}

void check_byte_order(const ZipArchive& archive, const std::string& prefix) {
  const std::string name =
      prefix + "byteorder";  // PyTorch before 2.1 does not write it, and uses the machine's byte order
  if (!archive.entries().contains(name)) return;
  constexpr int64_t kLongest = 16;
  const bool is_short = archive.entries().at(name).bytes <= kLongest;
  const auto bytes = is_short ? read_entry(archive, name) : std::vector<std::byte>();
  const std::string_view order(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (order != "little")
    throw UserError(archive.path().string() +
                    ": expected the byte order \"little\": save it on a little-endian machine");
}

Pickle read_pickle(const ZipArchive& archive, const std::string& prefix) {
  check_byte_order(archive, prefix);
  const std::string name = prefix + std::string(kPickleEntry);
  return Pickle(read_entry(archive, name), archive.path().string() + " (" + name + ")");
}

// Returns the safetensors dtype for the name of a storage class or dtype.
std::optional<std::string> dtype_of_global(std::string_view global) {
  static constexpr std::array<std::array<std::string_view, 3>, 10> kDtypes = {{
      {"torch.FloatStorage", "torch.float32", "F32"},
      {"torch.BFloat16Storage", "torch.bfloat16", "BF16"},
      {"torch.HalfStorage", "torch.float16", "F16"},
      {"torch.DoubleStorage", "torch.float64", "F64"},
      {"torch.LongStorage", "torch.int64", "I64"},
      {"torch.IntStorage", "torch.int32", "I32"},
      {"torch.ShortStorage", "torch.int16", "I16"},
      {"torch.CharStorage", "torch.int8", "I8"},
      {"torch.ByteStorage", "torch.uint8", "U8"},
      {"torch.BoolStorage", "torch.bool", "BOOL"},
  }};
  for (const auto& [storage, dtype, name] : kDtypes) {
    if (global == storage || global == dtype) return std::string(name);
  }
  return std::nullopt;
}

std::optional<std::vector<int64_t>> counts_of(const PickleValue& value) {
  constexpr size_t kMostDimensions = 64;
  if (!value.is(PickleKind::tuple) || value.size() > kMostDimensions) return std::nullopt;
  std::vector<int64_t> counts;
  for (size_t index = 0; index < value.size(); ++index) {
    const PickleValue count = value.item(index);
    if (!count.is(PickleKind::integer) || count.integer() < 0) return std::nullopt;
    counts.push_back(count.integer());
  }
  return counts;
}

// Returns the number of elements of a shape; absent if it does not fit into 64 bits.
std::optional<int64_t> numel_of(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  return numel;
}

// Whether the elements, for some order of the dimensions, fill contiguous memory without gaps or overlaps.
bool is_dense(const TorchTensor& tensor) {
  if (tensor.numel <= 1) return true;
  std::vector<size_t> order(tensor.shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t dim) { return std::pair(tensor.strides[dim], tensor.shape[dim]); });
  int64_t expected = 1;
  for (const size_t dim : order) {
    if (tensor.shape[dim] == 1) continue;
    if (tensor.strides[dim] != expected) return false;
    expected *= tensor.shape[dim];
  }
  return true;
}

}  // namespace

TorchFile::TorchFile(checkpoint::FileSystem& files, const std::filesystem::path& path)
    : archive_(files, path), prefix_(prefix_of(archive_)), pickle_(read_pickle(archive_, prefix_)) {}

std::optional<TorchTensor> TorchFile::tensor(const PickleValue& value, const std::string& name) const {
  const std::string what = where() + name + ": ";
  if (value.calls("torch._utils._rebuild_parameter") ||
      value.calls("torch._utils._rebuild_parameter_with_state")) {
    const PickleValue arguments = value.arguments();
    if (!arguments.is(PickleKind::tuple) || arguments.size() == 0 ||
        !arguments.item(0).calls("torch._utils._rebuild_tensor_v2"))
      throw UserError(what + "a parameter without a plain tensor");
    return tensor(arguments.item(0), name);
  }
  // _rebuild_from_type_v2(function, type, arguments, state): a tensor with attributes, or of a subclass.
  const bool is_typed = value.calls("torch._tensor._rebuild_from_type_v2");
  if (!is_typed && !value.calls("torch._utils._rebuild_tensor_v2")) {
    if (value.is(PickleKind::object) && value.callee().is(PickleKind::global) &&
        value.callee().text().starts_with("torch._utils._rebuild_"))
      throw UserError(what + "expected a dense tensor, found " + value.callee().text());
    return std::nullopt;
  }
  const PickleValue outer = value.arguments();
  if (is_typed &&
      (!outer.is(PickleKind::tuple) || outer.size() < 3 || !outer.item(0).is(PickleKind::global) ||
       outer.item(0).text() != "torch._utils._rebuild_tensor_v2"))
    throw UserError(what + "a tensor of a subclass that is no dense tensor");
  // _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks, metadata=None)
  const PickleValue arguments = is_typed ? outer.item(2) : outer;
  const bool complete = arguments.is(PickleKind::tuple) && arguments.size() >= 4 &&
                        arguments.item(0).is(PickleKind::persistent) &&
                        arguments.item(1).is(PickleKind::integer);
  const auto shape = complete ? counts_of(arguments.item(2)) : std::nullopt;
  const auto strides = complete ? counts_of(arguments.item(3)) : std::nullopt;
  if (!shape || !strides || shape->size() != strides->size())
    throw UserError(what + "damaged: a tensor without storage, offset, size and strides");
  // The storage's persistent id: ("storage", class, key, location, numel)
  const PickleValue storage = arguments.item(0).arguments();
  if (!storage.is(PickleKind::tuple) || storage.size() < 5 || !storage.item(1).is(PickleKind::global) ||
      !storage.item(2).is(PickleKind::text))
    throw UserError(what + "damaged: a storage without type and key");
  const auto dtype = dtype_of_global(storage.item(1).text());
  if (!dtype) throw UserError(what + "a storage of the type " + storage.item(1).text() + " is not supported");
  const auto numel = numel_of(*shape);
  TorchTensor found{.dtype = *dtype,
                    .entry = prefix_ + "data/" + storage.item(2).text(),
                    .offset = arguments.item(1).integer(),
                    .shape = *shape,
                    .strides = *strides,
                    .numel = numel.value_or(-1)};
  const auto entry = archive_.entries().find(found.entry);
  if (entry == archive_.entries().end()) throw UserError(what + "the archive has no entry " + found.entry);
  const int64_t stored = entry->second.bytes / checkpoint::element_bytes(found.dtype);
  if (!numel || found.offset < 0 || found.numel > stored || found.offset > stored - found.numel)
    throw UserError(what + "damaged: the tensor goes beyond its storage of " + std::to_string(stored) +
                    " elements");
  if (!is_dense(found))
    throw UserError(what + "its strides leave gaps or overlap: save it with .contiguous()");
  return found;
}

void TorchFile::read(const TorchTensor& tensor, int64_t begin, std::span<std::byte> into) {
  const int64_t size = checkpoint::element_bytes(tensor.dtype);
  const auto numel = static_cast<int64_t>(into.size()) / size;
  ZR_CHECK(begin >= 0 && numel <= tensor.numel && begin <= tensor.numel - numel, where() + tensor.entry);
  if (verified_.insert(tensor.entry).second) archive_.verify(tensor.entry);
  archive_.read(archive_.entries().at(tensor.entry), (tensor.offset + begin) * size, into);
}

}  // namespace zerorun::convert
