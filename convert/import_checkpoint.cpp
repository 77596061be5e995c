#include "convert/import_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/progress_bar.h"
#include "checkpoint/publication.h"
#include "checkpoint/state_file.h"

namespace zerorun::convert {
namespace {

int64_t imported_numel(const SourceState& state) {
  int64_t numel = 0;
  for (const SourcePiece& piece : state.pieces) numel += piece.numel;
  return numel;
}

// Writes the states one after the other into files of at most kImportFileBytes.
class FileWriter {
 public:
  FileWriter(checkpoint::FileSystem& files, const std::filesystem::path& folder,
             checkpoint::Manifest& manifest)
      : files_(files), folder_(folder), manifest_(manifest) {}

  void add(const std::string& parameter, const std::string& name, const SourceState& state) {
    const int64_t size = checkpoint::element_bytes(state.dtype);
    const int64_t numel = imported_numel(state);
    for (int64_t begin = 0; begin < numel;) {
      const int64_t room = (kImportFileBytes - file_bytes_) / size;
      if (room < std::min(numel - begin, kLeastNumel)) {
        flush();
        continue;
      }
      const int64_t count = std::min(room, numel - begin);
      auto memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(count * size));
      const std::span<std::byte> bytes(memory.get(), static_cast<size_t>(count * size));
      read(state, begin, bytes);
      checkpoint::RangeToWrite& added = file_.ranges.emplace_back();
      added.range.parameter = parameter;
      added.range.state = name;
      added.range.dtype = state.dtype;
      added.range.begin = begin;
      added.range.numel = count;
      added.source = std::make_shared<checkpoint::MemorySnapshot>(bytes);
      memory_.push_back(std::move(memory));
      file_bytes_ += checkpoint::rounded_up(count * size, checkpoint::kTensorAlignment);
      begin += count;
    }
  }

  void flush() {
    if (file_.ranges.empty()) return;
    constexpr size_t kNameBytes = 64;
    char name[kNameBytes];
    std::snprintf(name, sizeof(name), "imported-%05d.safetensors", count_++);
    file_.name = name;
    file_.metadata = {{"format", "zerorun"}, {"version", "1"}};
    manifest_.files[file_.name] = checkpoint::write_state_file(files_, folder_, file_);
    bytes_ += manifest_.files[file_.name].bytes;
    file_ = {};
    file_bytes_ = 0;
    memory_.clear();
  }

  int64_t bytes() const { return bytes_; }
  int64_t count() const { return count_; }

 private:
  // A state is continued in the next file only if at least this many of its elements fit into the current
  // file.
  static constexpr int64_t kLeastNumel = 4096;

  checkpoint::FileSystem& files_;
  const std::filesystem::path& folder_;
  checkpoint::Manifest& manifest_;
  checkpoint::FileToWrite file_ = {};
  int64_t file_bytes_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> memory_;  // values of the file's ranges
  int count_ = 0;
  int64_t bytes_ = 0;
};

void check_target(checkpoint::FileSystem& files, const DeepSpeedCheckpoint& source,
                  const std::filesystem::path& directory, const std::string& tag, bool replaces) {
  checkpoint::check_tag(tag);
  std::error_code error;
  if (std::filesystem::equivalent(directory, source.folder.parent_path(), error)) {
    throw UserError(
        directory.string() +
        " has the checkpoint that is imported, and its file latest would be replaced: name another "
        "folder");
  }
  if (replaces || !files.identity(directory / tag)) return;
  throw UserError((directory / tag).string() +
                  " exists: name the new checkpoint with --tag, or replace it with --replace");
}

}  // namespace

ImportedCheckpoint import_checkpoint(checkpoint::FileSystem& files, const DeepSpeedCheckpoint& source,
                                     const std::filesystem::path& directory, const std::string& given_tag,
                                     bool replaces) {
  const std::string tag = given_tag.empty() ? source.tag : given_tag;
  check_target(files, source, directory, tag, replaces);
  checkpoint::Publication publication(files, directory, tag);
  checkpoint::Manifest manifest{.tag = tag,
                                .saving = publication.saving(),
                                .generation = source.facts.generation,
                                .world_size = source.facts.world_size,
                                .stage = source.stage,
                                .precision = source.facts.precision,
                                .optimizer = source.facts.optimizer,
                                .parameters = {},
                                .files = {},
                                .numbers = std::vector<checkpoint::RestartValues>(
                                    static_cast<size_t>(source.facts.world_size), source.facts.numbers),
                                .client_state = source.facts.client_state};
  FileWriter writer(files, publication.folder(), manifest);
  ProgressBar bar("importing", static_cast<int64_t>(source.parameters.size()), /*shows=*/true);
  for (const auto& [name, parameter] : source.parameters) {
    manifest.parameters[name] = parameter.facts;
    for (const auto& [state_name, state] : parameter.states) writer.add(name, state_name, state);
    bar.advance(1);
  }
  writer.flush();
  publication.publish(to_json(manifest), /*save_latest=*/true);
  publication.remove_old(/*keep_last=*/0);
  return {.folder = directory / tag, .bytes = writer.bytes(), .files = writer.count()};
}

}  // namespace zerorun::convert
