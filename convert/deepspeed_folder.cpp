#include "convert/deepspeed_folder.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "checkpoint/publication.h"

namespace zerorun::convert {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModelFile = "mp_rank_00_model_states.pt";
constexpr const char* kUniversalFolder = "zero";

std::vector<std::string> names_in(checkpoint::FileSystem& files, const fs::path& folder) {
  if (auto names = files.list(folder)) return *names;
  throw UserError(folder.string() + ": cannot be read: expected the folder of a DeepSpeed checkpoint");
}

// Returns the folder of the tag that the file `latest` or `latest_universal` names. Without these files,
// returns `folder`.
fs::path tag_folder(checkpoint::FileSystem& files, const fs::path& folder) {
  for (const char* const name : {"latest", "latest_universal"}) {
    if (const auto tag = checkpoint::tag_in_file(files, folder / name)) return folder / *tag;
  }
  return folder;
}

// Returns R from "zero_pp_rank_R_mp_rank_00_SUFFIX", which may be preceded by "bf16_".
std::optional<size_t> rank_of(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPrecision = "bf16_";
  constexpr std::string_view kPrefix = "zero_pp_rank_";
  if (name.starts_with(kPrecision)) name.remove_prefix(kPrecision.size());
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(suffix.size());
  size_t rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (error != std::errc() || std::string_view(end, name.data() + name.size()) != "_mp_rank_00_")
    return std::nullopt;
  return rank;
}

// Returns the files of all ranks, by rank. Throws UserError if a rank's file is missing.
std::vector<fs::path> files_of_ranks(const fs::path& folder, const std::vector<std::string>& names,
                                     std::string_view suffix) {
  std::map<size_t, fs::path> by_rank;
  for (const std::string& name : names) {
    const auto rank = rank_of(name, suffix);
    if (!rank) continue;
    if (!by_rank.emplace(*rank, folder / name).second)
      throw UserError(folder.string() + ": two files of rank " + std::to_string(*rank) + ", " + name +
                      " and " + by_rank.at(*rank).filename().string() +
                      ": remove the one that an earlier run left");
  }
  std::vector<fs::path> in_order;
  for (const auto& [rank, path] : by_rank) {
    if (rank != in_order.size())
      throw UserError(folder.string() + ": the file of rank " + std::to_string(in_order.size()) + " (" +
                      std::string(suffix) + ") is missing: copy the files of all nodes into one folder");
    in_order.push_back(path);
  }
  return in_order;
}

void refuse_other_parallelism(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const bool is_tensor = name.find("mp_rank_") != std::string::npos &&
                           name.find("mp_rank_00") == std::string::npos && name.ends_with(".pt");
    const bool is_expert = name.find("expert_") != std::string::npos && name.ends_with(".pt");
    const bool is_pipeline = !is_expert && name.starts_with("layer_") && name.ends_with(".pt");
    if (!is_tensor && !is_pipeline && !is_expert) continue;
    throw UserError((folder / name).string() + ": written with " +
                    (is_tensor     ? "tensor"
                     : is_pipeline ? "pipeline"
                                   : "expert") +
                    " parallelism: only checkpoints of data-parallel training (ZeRO stages 0 to 3) are read");
  }
}

// Names the folder's checkpoints, for a message: without the file `latest` none of them is meant.
std::string checkpoints_in(checkpoint::FileSystem& files, const fs::path& folder,
                           const std::vector<std::string>& names) {
  std::string there;
  for (const std::string& name : names) {
    for (const std::string& file : files.list(folder / name).value_or(std::vector<std::string>())) {
      if (!file.ends_with("_model_states.pt")) continue;
      there += " " + name;
      break;
    }
  }
  if (there.empty()) return "";
  return "; it has no file \"latest\", so name the folder of one of its checkpoints:" + there;
}

}  // namespace

DeepSpeedFolder find_deepspeed_files(checkpoint::FileSystem& files, const fs::path& folder) {
  DeepSpeedFolder found;
  found.path = fs::absolute(tag_folder(files, folder)).lexically_normal();  // absolute, so "." gets a name
  if (!found.path.has_filename()) found.path = found.path.parent_path();
  found.tag = found.path.filename().string();
  const std::vector<std::string> names = names_in(files, found.path);
  refuse_other_parallelism(found.path, names);
  found.model_files = files_of_ranks(found.path, names, "model_states.pt");
  found.optimizer_files = files_of_ranks(found.path, names, "optim_states.pt");
  for (const std::string& name : names) {
    if (name == kModelFile) {
      if (!found.model_files.empty())
        throw UserError(found.path.string() + ": " + kModelFile + " (stages 0 to 2) and " +
                        found.model_files.front().filename().string() +
                        " (stage 3): remove the files that an earlier run left");
      found.model_files = {found.path / name};
    }
    if (name != kUniversalFolder) continue;
    found.is_universal = true;
    for (const std::string& parameter : names_in(files, found.path / name)) {
      if (files.list(found.path / name / parameter))
        found.parameter_folders.emplace(parameter, found.path / name / parameter);
    }
  }
  if (found.model_files.empty())
    throw UserError(found.path.string() + ": not a checkpoint of DeepSpeed: expected " + kModelFile +
                    " or zero_pp_rank_0_mp_rank_00_model_states.pt" +
                    checkpoints_in(files, found.path, names));
  return found;
}

}  // namespace zerorun::convert
