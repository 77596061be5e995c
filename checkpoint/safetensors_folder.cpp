#include "checkpoint/safetensors_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/state_header.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMetadataName = "__metadata__";
constexpr const char* kWriterEntry = "writer";
constexpr const char* kWriter = "zerorun";

// How the headers and the indices begin that this file writes. transformers requires the format.
constexpr std::string_view kHeaderStart = R"({"__metadata__":{"format":"pt","writer":"zerorun"})";
constexpr std::string_view kIndexStart = "{\n  \"metadata\": {\n    \"writer\": \"zerorun\",";

std::string shard_name(const std::string& stem, size_t index, size_t count) {
  if (count == 1) return stem + ".safetensors";
  constexpr size_t kNumberBytes = 64;
  char numbers[kNumberBytes];
  std::snprintf(numbers, sizeof(numbers), "-%05zu-of-%05zu.safetensors", index + 1, count);
  return stem + numbers;
}

std::string index_name(const std::string& stem) {
  return stem + ".safetensors.index.json";
}

// Whether an export with this stem may have written a file named `name`, such as
// "model-00001-of-00003.safetensors".
bool is_exported(const std::string& name, const std::string& stem) {
  if (name == stem + ".safetensors" || name == index_name(stem)) return true;
  constexpr std::string_view kPattern = "-00000-of-00000.safetensors";
  if (!name.starts_with(stem) || name.size() != stem.size() + kPattern.size()) return false;
  return std::ranges::equal(name.substr(stem.size()), kPattern, [](char found, char expected) {
    return expected == '0' ? found >= '0' && found <= '9' : found == expected;
  });
}

// Whether a SafetensorsFolder has written the file, which has the name of an index or of a shard.
bool is_own(checkpoint::FileSystem& files, const fs::path& path) {
  const bool is_index = path.extension() == ".json";
  const std::string_view start = is_index ? kIndexStart : kHeaderStart;
  std::string found(start.size(), '\0');
  try {
    checkpoint::OpenFile::open(files, path)
        .read(std::as_writable_bytes(std::span(found)), is_index ? 0 : sizeof(uint64_t));
  } catch (const UserError&) {
    return false;
  }
  return found == start;
}

}  // namespace

std::string safetensors_header(std::span<const TensorToStore> tensors) {
  std::string text(kHeaderStart);
  int64_t end = 0;
  for (const TensorToStore& tensor : tensors) {
    const nlohmann::ordered_json entry = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.bytes()}}};
    text += "," + nlohmann::json(tensor.name).dump() + ":" + entry.dump();
    end += tensor.bytes();
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

int64_t TensorToStore::bytes() const {
  int64_t bytes = checkpoint::element_bytes(dtype);
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

SafetensorsFolder::SafetensorsFolder(checkpoint::FileSystem& files, fs::path folder,
                                     std::vector<TensorToStore> tensors, int64_t max_shard_bytes,
                                     std::string stem, Replaceable replaceable)
    : files_(&files), folder_(std::move(folder)), stem_(std::move(stem)), tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw UserError(folder_.string() + ": no tensors to write");
  if (std::ranges::find(tensors_, kMetadataName, &TensorToStore::name) != tensors_.end()) {
    throw UserError(folder_.string() + ": a tensor is named " + kMetadataName +
                    ", which in safetensors files is the name of the metadata: rename it in the model");
  }
  plan_shards(max_shard_bytes);
  refuse_others(replaceable);
  checkpoint::make_folders(*files_, folder_);
  begin_shard();
}

SafetensorsFolder::~SafetensorsFolder() {
  if (finished_) return;
  file_.reset();
  for (size_t index = 0; index <= current_ && index < shards_.size(); ++index)
    files_->remove_file(partial(shards_[index].name));
}

// Assigns the tensors, in order, to shards. Begins a new shard if the next tensor would exceed the limit,
// like split_state_dict_into_shards_factory in huggingface_hub.
void SafetensorsFolder::plan_shards(int64_t max_shard_bytes) {
  for (size_t index = 0; index < tensors_.size(); ++index) {
    const int64_t bytes = tensors_[index].bytes();
    if (shards_.empty() || shards_.back().bytes + bytes > max_shard_bytes)
      shards_.push_back({.name = {}, .first = index, .end = index, .bytes = 0});
    shards_.back().end = index + 1;
    shards_.back().bytes += bytes;
  }
  for (size_t index = 0; index < shards_.size(); ++index)
    shards_[index].name = shard_name(stem_, index, shards_.size());
}

bool SafetensorsFolder::is_written(const std::string& name) const {
  return std::ranges::find(shards_, name, &Shard::name) != shards_.end() ||
         (shards_.size() > 1 && name == index_name(stem_));
}

void SafetensorsFolder::refuse_others(Replaceable replaceable) const {
  for (const std::string& name : files_->list(folder_).value_or(std::vector<std::string>())) {
    if (!is_exported(name, stem_) || is_own(*files_, folder_ / name)) continue;
    const bool is_named = is_written(name);
    if (is_named && replaceable == Replaceable::named) continue;
    throw UserError((folder_ / name).string() +
                    (is_named ? ": this file of another program would be replaced"
                              : ": readers would mix this file of another program with the new ones") +
                    ": remove it, or write into another folder");
  }
}

void SafetensorsFolder::begin_shard() {
  const Shard& shard = shards_[current_];
  const fs::path path = partial(shard.name);
  const int removed = files_->remove_file(path);
  if (removed != -ENOENT && removed != -ENOTDIR) checkpoint::check_done(removed, path, "removed");
  file_.emplace(checkpoint::OpenFile::create(*files_, path));
  const std::string header =
      safetensors_header(std::span(tensors_).subspan(shard.first, shard.end - shard.first));
  header_bytes_ = static_cast<int64_t>(header.size());
  file_->write(std::as_bytes(std::span(header)), 0);
  written_ = 0;
}

void SafetensorsFolder::end_shard() {
  file_->sync();
  file_.reset();
  ++current_;
}

void SafetensorsFolder::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (written_ == shards_[current_].bytes) {
      ZR_CHECK(current_ + 1 < shards_.size(), "more bytes than the tensors have");
      end_shard();
      begin_shard();
    }
    const auto count =
        std::min<int64_t>(static_cast<int64_t>(bytes.size()), shards_[current_].bytes - written_);
    file_->write(bytes.first(static_cast<size_t>(count)), header_bytes_ + written_);
    written_ += count;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

std::vector<std::string> SafetensorsFolder::finish() {
  while (written_ == shards_[current_].bytes) {
    end_shard();
    if (current_ == shards_.size()) break;
    begin_shard();
  }
  ZR_CHECK(current_ == shards_.size(), "fewer bytes than the tensors have");
  remove_earlier_export();
  std::vector<std::string> names;
  for (const Shard& shard : shards_) {
    checkpoint::check_done(files_->rename(partial(shard.name), folder_ / shard.name), folder_ / shard.name,
                           "written");
    names.push_back(shard.name);
  }
  finished_ = true;
  if (shards_.size() > 1) {
    checkpoint::check_done(files_->sync_folder(folder_), folder_, "synced");
    write_index();
    names.push_back(index_name(stem_));
  }
  checkpoint::check_done(files_->sync_folder(folder_), folder_, "synced");
  return names;
}

// Call this after the shards are renamed. Readers load only the shards that the index names. If a crash comes
// before this call, readers find no index, and so they cannot load a model with missing shards.
void SafetensorsFolder::write_index() const {
  int64_t total = 0;
  nlohmann::json files = nlohmann::json::object();
  for (const Shard& shard : shards_) {
    total += shard.bytes;
    for (size_t index = shard.first; index < shard.end; ++index) files[tensors_[index].name] = shard.name;
  }
  nlohmann::ordered_json index;
  index["metadata"][kWriterEntry] = kWriter;
  index["metadata"]["total_size"] = total;
  index["weight_map"] = files;
  const std::string name = index_name(stem_);
  const fs::path path = partial(name);
  const int removed = files_->remove_file(path);
  if (removed != -ENOENT) checkpoint::check_done(removed, path, "removed");
  write_text(*files_, path, index.dump(2) + "\n");
  checkpoint::check_done(files_->rename(path, folder_ / name), folder_ / name, "written");
}

void SafetensorsFolder::remove_earlier_export() const {
  for (const std::string& name : files_->list(folder_).value_or(std::vector<std::string>())) {
    const bool is_shard = std::ranges::find(shards_, name, &Shard::name) != shards_.end();
    if (is_shard || !is_exported(name, stem_)) continue;
    if (!is_written(name) && !is_own(*files_, folder_ / name)) continue;
    checkpoint::check_done(files_->remove_file(folder_ / name), folder_ / name, "removed");
  }
  // Makes the removals durable: a crash must not leave an old index beside new shards.
  checkpoint::check_done(files_->sync_folder(folder_), folder_, "synced");
}

}  // namespace zerorun
