#include "tests/checkpoint/hostile_manifest.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "checkpoint/checksums.h"
#include "checkpoint/comparison.h"
#include "checkpoint/saved_state.h"
#include "checkpoint/verification.h"
#include "tests/checkpoint/faulty_file_system.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Random = std::mt19937_64;

constexpr int64_t kMostBytes = 4 * kChecksumBlock;  // of a file; a longer one has another size

const std::vector<std::byte> kZeros(static_cast<size_t>(kChecksumBlock));

// A checkpoint's folder: its manifest, and files of zeros.
class FilesOfZeros : public FaultyFileSystem {
 public:
  explicit FilesOfZeros(std::string manifest)
      : FaultyFileSystem(local_file_system(), {}), manifest_(std::move(manifest)) {
    const json value = json::parse(manifest_, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object() || !value.contains("files") || !value["files"].is_object()) return;
    for (const auto& [name, file] : value["files"].items()) {
      const bool has_bytes = file.is_object() && file.contains("bytes") && file["bytes"].is_number_integer();
      const int64_t bytes = has_bytes ? file["bytes"].get<int64_t>() : 0;
      names_.push_back(name);
      sizes_.push_back(bytes <= kMostBytes ? bytes : 0);
    }
  }

  int open(const fs::path& file) override {
    if (file.filename() == "manifest.json") return 0;
    const auto found = std::ranges::find(names_, file.filename().string());
    return found == names_.end() ? -ENOENT : static_cast<int>(found - names_.begin()) + 1;
  }
  void close(int) override {}
  int64_t size(int file) override {
    return file == 0 ? static_cast<int64_t>(manifest_.size()) : sizes_[static_cast<size_t>(file) - 1];
  }
  int64_t read(int file, std::span<std::byte> into, int64_t offset) override {
    if (offset < 0) std::abort();
    const int64_t count = std::clamp<int64_t>(size(file) - offset, 0, static_cast<int64_t>(into.size()));
    const auto from = file == 0 ? std::as_bytes(std::span(manifest_)) : std::span(kZeros);
    std::ranges::copy(from.subspan(file == 0 ? static_cast<size_t>(offset) : 0, static_cast<size_t>(count)),
                      into.begin());
    return count;
  }
  std::optional<std::vector<std::string>> list(const fs::path&) override { return names_; }

 private:
  std::string manifest_;
  std::vector<std::string> names_;
  std::vector<int64_t> sizes_;
};

int depth_of(const std::string& text) {
  int depth = 0;
  int most = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') most = std::max(most, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return most;
}

// The text with checksums of files of zeros, and one of its own that fits.
std::string with_checksums(const std::string& text) {
  constexpr int kDeep = 100;
  json value = depth_of(text) < kDeep ? json::parse(text, nullptr, false) : json();
  if (!value.is_object()) return text;
  if (value.contains("files") && value["files"].is_object()) {
    for (auto& [name, file] : value["files"].items()) {
      if (!file.is_object() || !file.contains("bytes") || !file["bytes"].is_number_integer()) continue;
      const auto bytes = file["bytes"].get<int64_t>();
      if (bytes < 0 || bytes > kMostBytes) continue;
      file["checksums"] = json::array();
      for (int64_t begin = 0; begin < bytes; begin += kChecksumBlock) {
        const auto block = static_cast<size_t>(std::min(kChecksumBlock, bytes - begin));
        file["checksums"].push_back(in_hexadecimal(checksum_of(std::span(kZeros).first(block))));
      }
    }
  }
  value.erase("checksum");
  try {
    const std::string members = value.dump();
    value["checksum"] = in_hexadecimal(checksum_of(std::as_bytes(std::span(members))));
    return value.dump();
  } catch (const json::exception&) {  // not UTF-8
    return text;
  }
}

// Reads one state of a parameter into a part of `own`, which must get each of its elements once.
void read_into(SavedState& saved, const std::string& name, const std::string& state,
               const SavedParameter& own, int part) {
  const int64_t numel = numel_of(part_of(own, part));
  const int64_t begin = numel / 3;
  const int64_t size = element_bytes(saved.dtype_of(name, state));
  int64_t put = 0;
  WantedElements wanted{.parameter = name, .state = state, .own = own, .part = part, .begin = begin};
  wanted.numel = numel - begin;
  wanted.put = [&](const ElementRows& rows, std::span<const std::byte> from) {
    int64_t last_from = 0;
    int64_t last_to = rows.to;
    for (size_t dim = 0; dim < 2; ++dim) {
      last_from += (rows.sizes[dim] - 1) * rows.from_strides[dim];
      last_to += (rows.sizes[dim] - 1) * rows.to_strides[dim];
    }
    const bool fits = rows.to >= begin && last_to < numel && last_from >= 0 &&
                      (last_from + 1) * size <= static_cast<int64_t>(from.size());
    if (!fits) std::abort();
    put += rows.sizes[0] * rows.sizes[1];
  };
  saved.read({&wanted, 1});
  if (put != wanted.numel) std::abort();
}

SavedParameter split_in_two(SavedParameter own, size_t dim) {
  const int64_t half = own.shape[dim] / 2;
  own.split =
      SavedSplit{.dim = static_cast<int64_t>(dim), .parts = {{{0, half}}, {{half, own.shape[dim] - half}}}};
  return own;
}

void read_states(SavedState& saved) {
  for (const auto& [name, parameter] : saved.manifest().parameters) {
    if (!is_dense(parameter)) continue;
    SavedParameter whole = parameter;
    whole.split.reset();
    for (const std::string& state : saved.states_of(name)) {
      if (state.starts_with("gradient")) continue;
      read_into(saved, name, state, whole, kWhole);
      SavedParameter turned = whole;
      std::ranges::reverse(turned.strides);
      turned.strides = dense_strides(turned.shape, turned.strides);
      for (size_t dim = 0; dim < whole.shape.size(); ++dim)
        read_into(saved, name, state, split_in_two(turned, dim), 1);
    }
  }
}

// All values in a JSON text, by path.
void add_paths(const json& value, const json::json_pointer& at, std::vector<json::json_pointer>& paths) {
  paths.push_back(at);
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) add_paths(member, at / key, paths);
  } else if (value.is_array()) {
    for (size_t index = 0; index < value.size(); ++index) add_paths(value[index], at / index, paths);
  }
}

}  // namespace

std::string manifest_of_split() {
  Manifest manifest{
      .tag = "t",
      .saving = 1,
      .generation = 3,
      .world_size = 2,
      .stage = 1,
      .precision = "bf16",
      .optimizer = "AdamW",
      .parameters = {{"w", {{6, 10}, {10, 1}}}, {"v", {{8, 3}, {1, 8}}}, {"b", {{7}, {1}}}},
      .files = {},
      .numbers = {{{"steps.global", int64_t{3}}}, {}},
      .window =
          SavedWindow{.micro_steps = 1, .accumulation_steps = 2, .dtype = "F32", .communication = "fp32"},
      .client_state = "null",
      .mesh = MeshSizes{.data = 1, .tensor = 2, .pipeline = 1}};
  manifest.parameters.at("w").split = {.dim = 1, .parts = {{{0, 2}, {4, 3}}, {{2, 2}, {7, 3}}}};
  manifest.parameters.at("v").split = {.dim = 0, .parts = {{{0, 4}}, {{4, 4}}}};
  for (const int part : {0, 1}) {
    StateFileFacts& file = manifest.files["rank-" + std::to_string(part)];
    int64_t offset = kChecksumBlock - 64;
    auto add = [&](const std::string& name, const std::string& state, const std::string& dtype, int64_t numel,
                   int of) {
      file.ranges.push_back({name, state, dtype, 0, numel, offset, of});
      offset += rounded_up(numel * element_bytes(dtype), kTensorAlignment);
    };
    for (const char* state : {"value", "exp_avg"}) {
      add("w", state, state[0] == 'v' ? "BF16" : "F32", 30, part);
      add("v", state, "F32", 12, part);
      if (part == 0) add("b", state, "F32", 7, kWhole);
    }
    add("w", "gradient of rank " + std::to_string(part), "F32", 30, part);
    add("b", "gradient", "F32", 7, part);
    file.bytes = rounded_up(offset, 4096);
    file.checksums.resize(static_cast<size_t>((file.bytes + kChecksumBlock - 1) / kChecksumBlock));
  }
  return to_json(manifest);
}

std::string mutate_manifest(const std::string& text, Random& random) {
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) value = json::parse(manifest_of_split());
  std::vector<json::json_pointer> paths;
  add_paths(value, json::json_pointer(), paths);
  const auto any_path = [&] { return paths[random() % paths.size()]; };
  json::json_pointer at = any_path();
  // Mostly numbers: splits and ranges.
  for (int tries = 0; tries < 3 && !value[at].is_number_integer(); ++tries) at = any_path();
  json& changed = value[at];
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max();
  const std::array<int64_t, 12> limits = {
      0, 1, -1, 2, kLimit, -kLimit - 1, int64_t{1} << 31, int64_t{1} << 60, 64, 3, 7, int64_t{1} << 20};
  const json other = value[any_path()];
  switch (random() % 6) {
    case 0:
    case 1:
      changed = limits[random() % limits.size()];
      break;
    case 2:
    case 3:
      if (changed.is_number_integer() && std::abs(changed.get<int64_t>() / 2) < kLimit / 4) {
        changed = changed.get<int64_t>() + static_cast<int64_t>(random() % 5) - 2;
      } else {
        changed = other;
      }
      break;
    case 4:
      changed = other;
      break;
    default:
      if (at.empty()) break;
      if (value[at.parent_pointer()].is_array()) {
        json& list = value[at.parent_pointer()];
        if (random() % 2 == 0) {
          list.push_back(other);
        } else {
          list.erase(std::stoul(at.back()));
        }
      } else {
        value[at.parent_pointer()].erase(at.back());
      }
  }
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

Reading read_manifest(const std::string& text) {
  outline_of(text);
  FilesOfZeros files(with_checksums(text));
  try {
    SavedState saved(files, "folder");
    verify_checkpoint(files, "folder");
    if (!saved.faults().empty()) return Reading::faulty;
    read_states(saved);
    SavedState again(files, "folder");
    compare_checkpoints(saved, again);
    return Reading::read;
  } catch (const UserError&) {
    return Reading::refused;
  }
}

}  // namespace zerorun::testing
