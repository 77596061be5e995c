#include "checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "checkpoint/checksums.h"
#include "checkpoint/json_members.h"
#include "checkpoint/manifest_mesh.h"
#include "checkpoint/manifest_text.h"

namespace zerorun::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;  // keeps the order of the keys of client_state

constexpr const char* kFormat = "zerorun checkpoint";
constexpr int kVersion = 2;
constexpr int kOldestVersion = 1;  // without "saving", "skippable" and the parameters' "group"
constexpr int64_t kMostRanks = 1 << 20;

std::vector<uint8_t> bytes_of(const std::string& text) {
  auto digit = [&](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw UserError("\"" + text.substr(0, 20) + "\": expected hexadecimal digits");
  };
  if (text.size() % 2 != 0) throw UserError("an odd number of hexadecimal digits");
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(16 * digit(text[2 * i]) + digit(text[2 * i + 1]));
  }
  return bytes;
}

json to_value(const RestartValue& value) {
  if (const auto* bytes = std::get_if<std::vector<uint8_t>>(&value))
    return in_hexadecimal(std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  return std::get<double>(value);
}

RestartValue from_value(const json& value) {
  if (value.is_string()) return bytes_of(value.get<std::string>());
  if (value.is_number_integer()) return value.get<int64_t>();
  return value.get<double>();
}

json to_value(const StateFileFacts& file) {
  json checksums = json::array();
  for (const uint64_t checksum : file.checksums) checksums.push_back(in_hexadecimal(checksum));
  json ranges = json::array();
  for (const StateRange& range : file.ranges) {
    ranges.push_back({{"parameter", range.parameter},
                      {"state", range.state},
                      {"dtype", range.dtype},
                      {"begin", range.begin},
                      {"numel", range.numel},
                      {"offset", range.offset}});
    if (range.part != kWhole) ranges.back()["part"] = range.part;
  }
  return {{"bytes", file.bytes}, {"checksums", std::move(checksums)}, {"ranges", std::move(ranges)}};
}

StateFileFacts parse_file(const json& value, const std::string& where, const Skippable& skippable) {
  Members members(value, where, skippable, "files.");
  StateFileFacts file{.bytes = members.count("bytes"), .checksums = {}, .ranges = {}};
  for (const json& checksum : members.at("checksums"))
    file.checksums.push_back(from_hexadecimal(checksum.get<std::string>()));
  if (static_cast<int64_t>(file.checksums.size()) != (file.bytes + kChecksumBlock - 1) / kChecksumBlock) {
    throw UserError(where + ": expected a checksum for each MiB of " + std::to_string(file.bytes) + " bytes");
  }
  for (const json& entry : members.at("ranges")) {
    Members range(entry, where, skippable, "ranges.");
    file.ranges.push_back({.parameter = range.get<std::string>("parameter"),
                           .state = range.get<std::string>("state"),
                           .dtype = range.get<std::string>("dtype"),
                           .begin = range.count("begin"),
                           .numel = range.count("numel"),
                           .offset = range.count("offset")});
    StateRange& added = file.ranges.back();
    if (range.find("part")) added.part = static_cast<int>(std::min(range.count("part"), kMostRanks));
    range.end();
    if (added.offset > file.bytes || added.numel > (file.bytes - added.offset) / element_bytes(added.dtype)) {
      throw UserError(where + ": " + added.parameter + " goes beyond the file's end");
    }
    if (added.offset % element_bytes(added.dtype) != 0)
      throw UserError(where + ": " + added.parameter +
                      " is at an offset that is no multiple of its elements");
  }
  members.end();
  return file;
}

SavedParameter parse_parameter(const json& value, const std::string& where, const Skippable& skippable,
                               int64_t version) {
  Members members(value, where, skippable, "parameters.");
  SavedParameter parameter{.shape = members.get<std::vector<int64_t>>("shape"),
                           .strides = members.get<std::vector<int64_t>>("strides"),
                           .trained = members.get<bool>("trained"),
                           .excluded = members.get<bool>("excluded"),
                           .aliases = members.get<std::vector<std::string>>("aliases"),
                           .group = version > 1 ? members.get<int64_t>("group") : -1};
  members.end();
  return parameter;
}

json to_value(const std::optional<SavedWindow>& window) {
  if (!window) return nullptr;
  return {{"micro_steps", window->micro_steps},     {"accumulation_steps", window->accumulation_steps},
          {"is_summed", window->is_summed},         {"dtype", window->dtype},
          {"communication", window->communication}, {"factor", window->factor},
          {"loss_scale", window->loss_scale}};
}

std::optional<SavedWindow> parse_window(const json& value, const std::string& where,
                                        const Skippable& skippable) {
  if (value.is_null()) return std::nullopt;
  Members members(value, where, skippable, "window.");
  SavedWindow window{.micro_steps = members.count("micro_steps"),
                     .accumulation_steps = members.count("accumulation_steps"),
                     .is_summed = members.get<bool>("is_summed"),
                     .dtype = members.get<std::string>("dtype"),
                     .communication = members.get<std::string>("communication"),
                     .factor = members.get<double>("factor"),
                     .loss_scale = members.get<double>("loss_scale")};
  members.end();
  return window;
}

json to_value(const RestartValues& numbers) {
  json values = json::object();
  for (const auto& [name, value] : numbers) values[name] = to_value(value);
  return values;
}

RestartValues parse_numbers(const json& values) {
  RestartValues numbers;
  for (const auto& [name, value] : values.items()) numbers[name] = from_value(value);
  return numbers;
}

// Returns the checksum of all members except the member "checksum".
std::string checksum_of_members(const json& value) {
  const std::string text = value.dump();
  return in_hexadecimal(checksum_of(std::as_bytes(std::span(text))));
}

void check_checksum(json& value, const std::string& place) {
  if (!value.is_object() || !value.contains("checksum")) return;  // parse_members() reports the error
  const json recorded = value["checksum"];
  value.erase("checksum");
  if (recorded != checksum_of_members(value)) {
    throw UserError(place +
                    " is not what was written (another checksum): the checkpoint is damaged, load "
                    "another one");
  }
  value["checksum"] = recorded;
}

// Throws UserError if the parameter's shape or its number of strides is invalid.
void check_shape(const SavedParameter& parameter, const std::string& where) {
  int64_t numel = 1;  // sizes of 0 count as 1, as dense_strides() counts them
  bool is_valid = parameter.shape.size() == parameter.strides.size();
  for (const int64_t size : parameter.shape)
    is_valid = is_valid && size >= 0 && !__builtin_mul_overflow(numel, std::max<int64_t>(size, 1), &numel);
  if (!is_valid) throw UserError(where + ": expected a shape from 0 up, and as many strides");
}

// Whether the range is one of a parameter, and its part is one that the parameter has.
bool is_in(const StateRange& range, const Manifest& manifest) {
  const auto parameter = manifest.parameters.find(range.parameter);
  const int tensor_ranks = manifest.mesh ? manifest.mesh->tensor : 0;
  if (parameter == manifest.parameters.end() || range.part >= tensor_ranks) return false;
  const SavedParameter& whole = parameter->second;
  if (whole.split && range.part == kWhole) return false;
  const int64_t numel = whole.split ? numel_of(part_of(whole, range.part)) : numel_of(whole);
  return range.begin <= numel && range.numel <= numel - range.begin;
}

bool is_name_of_file(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Throws UserError if members of the manifest contradict each other.
void check_consistent(const Manifest& manifest, const std::string& place) {
  if (manifest.world_size < 1) throw UserError(place + ": \"world_size\": expected 1 or more");
  if (static_cast<int64_t>(manifest.numbers.size()) != manifest.world_size) {
    throw UserError(place + ": numbers of " + std::to_string(manifest.numbers.size()) + " ranks, expected " +
                    std::to_string(manifest.world_size));
  }
  for (const auto& [name, file] : manifest.files) {
    const std::string where = place + ": file \"" + name + "\"";
    if (!is_name_of_file(name)) {
      throw UserError(where + ": expected the name of a file of the checkpoint's folder");
    }
    for (const StateRange& range : file.ranges) {
      if (!is_in(range, manifest))
        throw UserError(where + ": a range of " + range.parameter + " that it does not have");
    }
  }
}

Manifest parse_members(const json& value, const std::string& place) {
  Skippable skippable;
  Members members(value, place, skippable, "");
  const auto format = members.get<std::string>("format");
  const auto version = members.get<int64_t>("version");
  if (format != kFormat || version < kOldestVersion || version > kVersion) {
    throw UserError(place + ": expected \"" + kFormat + "\", version " + std::to_string(kOldestVersion) +
                    " to " + std::to_string(kVersion) + ", found \"" + format + "\", version " +
                    std::to_string(version) + ": read it with the ZeroRun that wrote it");
  }
  if (version > 1) skippable = members.get<Skippable>("skippable");
  Manifest manifest{.tag = members.get<std::string>("tag"),
                    .saving = version > 1 ? members.count("saving") : 0,
                    .generation = members.get<int64_t>("generation"),
                    .world_size = static_cast<int>(std::min(members.count("world_size"), kMostRanks)),
                    .stage = members.get<int>("stage"),
                    .precision = members.get<std::string>("precision"),
                    .optimizer = members.get<std::string>("optimizer"),
                    .parameters = {},
                    .files = {},
                    .numbers = {},
                    .window = parse_window(members.at("window"), place + ": window", skippable)};
  for (const auto& [name, parameter] : members.at("parameters").items())
    manifest.parameters[name] = parse_parameter(parameter, place + ": parameter " + name, skippable, version);
  for (const auto& [name, parameter] : manifest.parameters)
    check_shape(parameter, place + ": parameter " + name);
  if (const json* mesh = members.find("mesh")) read_mesh_member(manifest, *mesh, place);
  for (const auto& [name, file] : members.at("files").items())
    manifest.files[name] = parse_file(file, place + ": file " + name, skippable);
  for (const json& numbers : members.at("numbers")) manifest.numbers.push_back(parse_numbers(numbers));
  check_consistent(manifest, place);
  for (const char* key : {"client_state", "checksum"}) members.at(key);
  members.end();
  return manifest;
}

}  // namespace

MeshSizes mesh_of(const Manifest& manifest) {
  return manifest.mesh.value_or(MeshSizes{.data = manifest.world_size, .tensor = 1, .pipeline = 1});
}

std::string to_json(const Manifest& manifest) {
  json parameters = json::object();
  for (const auto& [name, parameter] : manifest.parameters) {
    parameters[name] = {{"shape", parameter.shape},     {"strides", parameter.strides},
                        {"trained", parameter.trained}, {"excluded", parameter.excluded},
                        {"aliases", parameter.aliases}, {"group", parameter.group}};
  }
  json files = json::object();
  for (const auto& [name, file] : manifest.files) files[name] = to_value(file);
  json numbers = json::array();
  for (const RestartValues& of_rank : manifest.numbers) numbers.push_back(to_value(of_rank));
  ordered_json client_state = parse_client_state(manifest.client_state);
  json value = {{"format", kFormat},
                {"version", kVersion},
                {"skippable", json::array()},
                {"tag", manifest.tag},
                {"saving", manifest.saving},
                {"generation", manifest.generation},
                {"world_size", manifest.world_size},
                {"stage", manifest.stage},
                {"precision", manifest.precision},
                {"optimizer", manifest.optimizer},
                {"parameters", std::move(parameters)},
                {"files", std::move(files)},
                {"numbers", std::move(numbers)},
                {"window", to_value(manifest.window)},
                {"client_state", json(client_state)}};
  if (manifest.mesh) value["mesh"] = mesh_member(manifest);
  value["checksum"] = checksum_of_members(value);
  ordered_json written(std::move(value));
  written["client_state"] = std::move(client_state);
  return written.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& place) {
  try {
    auto [value, client_state] = parse_manifest_text(text, place);
    if (client_state) value["client_state"] = *client_state;
    check_checksum(value, place);
    Manifest manifest = parse_members(value, place);
    manifest.client_state = client_state->dump();
    manifest.checksum = value["checksum"].get<std::string>();
    return manifest;
  } catch (const json::exception& error) {
    throw UserError(place + ": " + error.what());
  }
}

std::optional<ManifestOutline> outline_of(const std::string& text) {
  try {
    const json value = parse_manifest_text(text, "").members;
    if (!value.is_object() || value.value("format", "") != kFormat) return std::nullopt;
    ManifestOutline outline;
    const json& saving = value.value("saving", json(0));
    if (saving.is_number_integer() && saving > 0) outline.saving = saving.get<int64_t>();
    for (const auto& [name, file] : value.at("files").items()) {
      if (is_name_of_file(name)) outline.files.insert(name);
    }
    return outline;
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const UserError&) {
    return std::nullopt;  // nested too deep
  }
}

std::string to_json(const std::map<std::string, StateFileFacts>& files, const RestartValues& numbers) {
  json part = {{"files", json::object()}, {"numbers", to_value(numbers)}};
  for (const auto& [name, file] : files) part["files"][name] = to_value(file);
  return part.dump();
}

void add_part(Manifest& manifest, const std::string& text, const std::string& place) {
  const json part = json::parse(text);
  for (const auto& [name, file] : part.at("files").items())
    manifest.files[name] = parse_file(file, place + ": file " + name, /*skippable=*/{});
  manifest.numbers.push_back(parse_numbers(part.at("numbers")));
}

}  // namespace zerorun::checkpoint
