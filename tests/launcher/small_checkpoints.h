// Small checkpoints whose values are known, for the tests of `zerorun checkpoint`.
#pragma once

#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/inventory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/memory_snapshot.h"
#include "checkpoint/publication.h"
#include "checkpoint/state_file.h"

namespace zerorun::testing {

inline constexpr int64_t kNumel = 600'000;  // elements of h.weight: more than 2 MiB

inline std::vector<float> ramp(float first) {
  std::vector<float> values(kNumel);
  std::iota(values.begin(), values.end(), first);
  return values;
}

struct Content {
  std::string tag = "global_step5";
  int64_t generation = 5;
  std::vector<float> weight = ramp(1);
  std::vector<float> bias = {1.5F, -2.5F};
  int64_t split = 300'000;        // elements of h.weight in the first file
  std::string link_bias_to = "";  // the tag whose bias.safetensors is linked; empty: a new file is written
};

inline checkpoint::StateRange range_of(const std::string& parameter, int64_t begin, int64_t numel) {
  checkpoint::StateRange range;
  range.parameter = parameter;
  range.state = "value";
  range.dtype = "F32";
  range.begin = begin;
  range.numel = numel;
  return range;
}

inline void add_file(checkpoint::Manifest& manifest, const std::filesystem::path& folder,
                     const std::string& name, const checkpoint::StateRange& range,
                     std::span<const float> values) {
  checkpoint::FileToWrite file;
  file.name = name;
  checkpoint::RangeToWrite& added = file.ranges.emplace_back();
  added.range = range;
  added.source = std::make_shared<checkpoint::MemorySnapshot>(std::as_bytes(values));
  manifest.files[name] = checkpoint::write_state_file(checkpoint::local_file_system(), folder, file);
}

inline checkpoint::Manifest manifest_of(const Content& content) {
  checkpoint::Manifest manifest;
  manifest.tag = content.tag;
  manifest.generation = content.generation;
  manifest.world_size = 1;
  manifest.precision = "fp32";
  manifest.optimizer = "SGD";
  manifest.parameters = {{"h.weight", {{600, 1000}, {1000, 1}, true, false, {"tied.weight"}}},
                         {"h.bias", {{2}, {1}, true, false, {}}}};
  manifest.numbers = {{{"steps.global", int64_t{7}}, {"group 0.lr", 0.25}}};
  manifest.client_state = R"({"epoch":3})";
  return manifest;
}

// A checkpoint of two parameters: h.weight in two files, h.bias in one.
inline void save(const std::filesystem::path& directory, const Content& content) {
  checkpoint::Publication publication(checkpoint::local_file_system(), directory, content.tag);
  checkpoint::Manifest manifest = manifest_of(content);
  manifest.saving = publication.saving();
  const std::span<const float> weight(content.weight);
  const std::filesystem::path folder = publication.folder();
  add_file(manifest, folder, "a.safetensors", range_of("h.weight", 0, content.split),
           weight.first(static_cast<size_t>(content.split)));
  add_file(manifest, folder, "b.safetensors", range_of("h.weight", content.split, kNumel - content.split),
           weight.subspan(static_cast<size_t>(content.split)));
  add_file(manifest, folder, "bias.safetensors", range_of("h.bias", 0, 2), content.bias);
  if (!content.link_bias_to.empty()) {
    std::filesystem::remove(folder / "bias.safetensors");
    std::filesystem::create_hard_link(directory / content.link_bias_to / "bias.safetensors",
                                      folder / "bias.safetensors");
  }
  publication.publish(checkpoint::to_json(manifest), true);
}

inline std::vector<std::string> tags_in(const std::filesystem::path& directory) {
  return checkpoint::published_tags(checkpoint::local_file_system(), directory);
}

}  // namespace zerorun::testing
