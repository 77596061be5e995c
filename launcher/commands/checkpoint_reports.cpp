#include "launcher/commands/checkpoint_reports.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "checkpoint/manifest_text.h"

namespace zerorun::launcher {
namespace {

using nlohmann::ordered_json;

const char* name_of_kind(checkpoint::TagState state) {
  switch (state) {
    case checkpoint::TagState::complete:
      return "complete";
    case checkpoint::TagState::damaged:
      return "damaged";
    case checkpoint::TagState::unfinished:
      return "unfinished";
  }
  return "";
}

// "2026-11-23T14:05:09", local time.
std::string saving_time_text(std::filesystem::file_time_type written) {
  const auto system = std::chrono::file_clock::to_sys(written);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(
      std::chrono::time_point_cast<std::chrono::system_clock::duration>(system));
  std::tm local = {};
  ::localtime_r(&seconds, &local);
  constexpr size_t kTextBytes = 32;
  char text[kTextBytes];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &local);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string count(int64_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

// Text with one line per row, in which each column is as wide as its widest entry.
std::string table(std::vector<std::vector<std::string>> rows) {
  for (auto& row : rows) {
    for (std::string& entry : row) entry = printable(entry);  // names come from files and folders
  }
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      line += row[column];
      if (column + 1 < row.size()) line.append(widths[column] - row[column].size() + 2, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string settings_text(const checkpoint::Manifest& manifest) {
  return manifest.precision + ", stage " + std::to_string(manifest.stage) + ", " +
         count(manifest.world_size, "rank") + (manifest.mesh ? " (" + describe(*manifest.mesh) + ")" : "") +
         ", " + manifest.optimizer;
}

// The bytes of each state in the files: by parameter, then by state and dtype ("value F32").
std::map<std::string, std::map<std::string, int64_t>> state_bytes(const checkpoint::Manifest& manifest) {
  std::map<std::string, std::map<std::string, int64_t>> bytes;
  for (const auto& [name, file] : manifest.files) {
    for (const checkpoint::StateRange& range : file.ranges)
      bytes[range.parameter][range.state + " " + range.dtype] +=
          range.numel * checkpoint::element_bytes(range.dtype);
  }
  return bytes;
}

ordered_json to_json(const checkpoint::RestartValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::to_string(std::get<std::vector<uint8_t>>(value).size()) + " bytes";
}

// By tensor rank, pairs of the first index and the number of indices.
ordered_json split_of(const checkpoint::SavedSplit& split) {
  auto parts = ordered_json::array();
  for (const auto& intervals : split.parts) {
    auto part = ordered_json::array();
    for (const auto& [begin, numel] : intervals) part.push_back({begin, numel});
    parts.push_back(std::move(part));
  }
  return {{"dim", split.dim}, {"parts", std::move(parts)}};
}

}  // namespace

std::string readable_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  constexpr size_t kTextBytes = 32;
  char text[kTextBytes];
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

std::string to_text(const std::vector<checkpoint::InventoryTag>& tags) {
  if (tags.empty()) return "no checkpoints\n";
  std::vector<std::vector<std::string>> rows = {{"tag", "", "step", "written", "size", "settings"}};
  for (const checkpoint::InventoryTag& tag : tags) {
    std::string settings = std::string(name_of_kind(tag.state)) + ": ";
    if (tag.state == checkpoint::TagState::complete) settings = settings_text(*tag.manifest);
    if (tag.state == checkpoint::TagState::damaged) settings += tag.problem;
    if (tag.state == checkpoint::TagState::unfinished)
      settings += "being written, or left by a run that died";
    rows.push_back({tag.tag, tag.is_latest ? "latest" : "",
                    tag.manifest ? std::to_string(tag.manifest->generation) : "-",
                    saving_time_text(tag.written), readable_bytes(tag.bytes), settings});
  }
  return table(rows);
}

ordered_json to_json(const std::vector<checkpoint::InventoryTag>& tags) {
  auto list = ordered_json::array();
  for (const checkpoint::InventoryTag& tag : tags) {
    ordered_json entry = {{"tag", tag.tag},
                          {"folder", tag.folder.string()},
                          {"state", name_of_kind(tag.state)},
                          {"latest", tag.is_latest},
                          {"written", saving_time_text(tag.written)},
                          {"bytes", tag.bytes}};
    if (tag.manifest) {
      entry["step"] = tag.manifest->generation;
      entry["precision"] = tag.manifest->precision;
      entry["stage"] = tag.manifest->stage;
      entry["world_size"] = tag.manifest->world_size;
      entry["optimizer"] = tag.manifest->optimizer;
    }
    if (!tag.problem.empty()) entry["problem"] = tag.problem;
    list.push_back(std::move(entry));
  }
  return {{"checkpoints", std::move(list)}};
}

std::string to_text(const checkpoint::SavedState& saved, const std::vector<std::string>& parameters) {
  const checkpoint::Manifest& manifest = saved.manifest();
  std::string text = manifest.tag + ": after " + count(manifest.generation, "optimizer step") + "; " +
                     settings_text(manifest) + "\n";
  if (manifest.window)
    text += "saved " + count(manifest.window->micro_steps, "micro-step") + " into an accumulation of " +
            std::to_string(manifest.window->accumulation_steps) + "\n";
  std::vector<std::vector<std::string>> numbers;
  for (const auto& [name, value] : manifest.numbers.front())
    numbers.push_back({"  " + name, to_json(value).dump()});
  text += table(numbers);
  if (manifest.client_state != "null") text += "client state: " + manifest.client_state + "\n";
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  text += count(static_cast<int64_t>(manifest.files.size()), "file") + ", " + readable_bytes(bytes) + "\n";
  const auto bytes_by_parameter = state_bytes(manifest);
  std::vector<std::vector<std::string>> rows;
  for (const std::string& name : parameters) {
    const checkpoint::SavedParameter& parameter = manifest.parameters.at(name);
    std::string states;
    if (const auto found = bytes_by_parameter.find(name); found != bytes_by_parameter.end()) {
      for (const auto& [state, of_state] : found->second)
        states += (states.empty() ? "" : ", ") + state + " " + readable_bytes(of_state);
    }
    if (parameter.excluded) states = "in no file";
    std::string kind = parameter.trained ? "" : "not trained";
    auto add = [&](const std::string& words) { kind += (kind.empty() ? "" : ", ") + words; };
    for (const std::string& alias : parameter.aliases) add("also " + alias);
    if (parameter.split) add("split " + describe(parameter.split));
    rows.push_back({name, shape_text(parameter.shape), states, kind});
  }
  return text + table(rows);
}

ordered_json to_json(const checkpoint::SavedState& saved, const std::vector<std::string>& parameters) {
  const checkpoint::Manifest& manifest = saved.manifest();
  ordered_json numbers = ordered_json::object();
  for (const auto& [name, value] : manifest.numbers.front()) numbers[name] = to_json(value);
  ordered_json files = ordered_json::object();
  for (const auto& [name, file] : manifest.files) files[name] = file.bytes;
  ordered_json list = ordered_json::object();
  for (const std::string& name : parameters) {
    const checkpoint::SavedParameter& parameter = manifest.parameters.at(name);
    ordered_json states = ordered_json::object();
    for (const std::string& state : saved.states_of(name)) states[state] = saved.dtype_of(name, state);
    list[name] = {{"shape", parameter.shape},     {"strides", parameter.strides},
                  {"trained", parameter.trained}, {"excluded", parameter.excluded},
                  {"aliases", parameter.aliases}, {"states", std::move(states)}};
    if (parameter.split) list[name]["split"] = split_of(*parameter.split);
  }
  ordered_json mesh;
  if (manifest.mesh)
    mesh = {{"data", manifest.mesh->data},
            {"tensor", manifest.mesh->tensor},
            {"pipeline", manifest.mesh->pipeline}};
  return {{"tag", manifest.tag},
          {"step", manifest.generation},
          {"precision", manifest.precision},
          {"stage", manifest.stage},
          {"world_size", manifest.world_size},
          {"mesh", std::move(mesh)},
          {"optimizer", manifest.optimizer},
          {"micro_steps", manifest.window ? manifest.window->micro_steps : 0},
          {"numbers", std::move(numbers)},
          {"client_state", checkpoint::parse_client_state(manifest.client_state)},
          {"files", std::move(files)},
          {"parameters", std::move(list)}};
}

std::string to_text(const checkpoint::Verification& result, const std::string& folder, double seconds) {
  std::string text;
  for (const checkpoint::Damage& damage : result.damages) {
    text += folder + ": " + damage.file + (damage.file.empty() ? "" : ": ") +
            (damage.block < 0 ? "" : "block " + std::to_string(damage.block) + " (1 MiB) ") + damage.what +
            "\n";
  }
  const double speed = seconds > 0 ? static_cast<double>(result.bytes) / seconds : 0;
  return text + folder + ": " + (result.passed() ? "whole: " : "damaged: ") + count(result.files, "file") +
         ", " + readable_bytes(result.bytes) + " read, " + readable_bytes(static_cast<int64_t>(speed)) +
         "/s\n";
}

ordered_json to_json(const checkpoint::Verification& result, const std::string& folder) {
  auto damages = ordered_json::array();
  for (const checkpoint::Damage& damage : result.damages) {
    ordered_json entry = {{"file", damage.file}, {"block", damage.block}, {"message", damage.what}};
    if (damage.block < 0) entry.erase("block");
    damages.push_back(std::move(entry));
  }
  return {{"folder", folder},
          {"whole", result.passed()},
          {"files", result.files},
          {"bytes", result.bytes},
          {"damages", std::move(damages)}};
}

std::string to_text(const checkpoint::CheckpointComparison& result) {
  std::vector<std::vector<std::string>> rows;
  auto shown = [](const std::string& text) { return text.empty() ? std::string("absent") : text; };
  for (const checkpoint::SettingDifference& setting : result.settings)
    rows.push_back({setting.name, shown(setting.first), shown(setting.second)});
  std::string text = table(rows);
  rows.clear();
  for (const checkpoint::StateDifference& state : result.states) {
    std::string how = state.reason;
    if (state.differing > 0) {
      constexpr size_t kTextBytes = 64;
      char largest[kTextBytes];
      std::snprintf(largest, sizeof(largest), "%.3g", state.largest);
      how = std::to_string(state.differing) + " of " + count(state.numel, "element") + " differ";
      if (state.largest > 0) how += std::string(", largest difference ") + largest;
    }
    rows.push_back({state.parameter, state.state, how});
  }
  text += table(rows);
  return text + (result.equal() ? "no difference in " : "different: compared ") +
         count(result.compared, "state") + "\n";
}

ordered_json to_json(const checkpoint::CheckpointComparison& result) {
  auto settings = ordered_json::array();
  for (const checkpoint::SettingDifference& setting : result.settings)
    settings.push_back({{"name", setting.name}, {"first", setting.first}, {"second", setting.second}});
  auto states = ordered_json::array();
  for (const checkpoint::StateDifference& state : result.states) {
    ordered_json entry = {{"parameter", state.parameter}, {"state", state.state}, {"reason", state.reason}};
    if (state.differing > 0) {
      entry["elements"] = state.numel;
      entry["differing"] = state.differing;
      // null if infinite: JSON has no infinity.
      entry["largest_difference"] =
          std::isfinite(state.largest) ? ordered_json(state.largest) : ordered_json();
    }
    states.push_back(std::move(entry));
  }
  return {{"equal", result.equal()},
          {"compared", result.compared},
          {"settings", std::move(settings)},
          {"states", std::move(states)}};
}

std::string to_text(const checkpoint::PrunePlan& plan, bool is_dry_run) {
  std::string text;
  for (const checkpoint::InventoryTag& tag : plan.removed)
    text += (is_dry_run ? "would remove " : "removed ") + tag.tag + "\n";
  return text + count(static_cast<int64_t>(plan.removed.size()), "checkpoint") +
         (is_dry_run ? " would go, " : " removed, ") + readable_bytes(plan.freed_bytes) +
         (is_dry_run ? " would become free; " : " freed; ") +
         count(static_cast<int64_t>(plan.kept.size()), "checkpoint") + " kept\n";
}

ordered_json to_json(const checkpoint::PrunePlan& plan, bool is_dry_run) {
  auto names = [](const std::vector<checkpoint::InventoryTag>& tags) {
    auto list = ordered_json::array();
    for (const checkpoint::InventoryTag& tag : tags) list.push_back(tag.tag);
    return list;
  };
  return {{"dry_run", is_dry_run},
          {"removed", names(plan.removed)},
          {"kept", names(plan.kept)},
          {"freed_bytes", plan.freed_bytes}};
}

}  // namespace zerorun::launcher
