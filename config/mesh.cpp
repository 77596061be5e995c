// The mesh of ranks: from the file's zerorun.mesh, or from the program.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/sections.h"

namespace zerorun::config {
namespace {

using Sizes = std::optional<MeshSizes>;

// "zerorun.mesh" if the file has it.
Sizes read_section(const Settings& settings) {
  const Setting* section = settings.find("zerorun.mesh");
  if (!section || section->source == Source::refused) return std::nullopt;
  MeshSizes sizes;
  const auto read = [&](std::string_view path, int& size) {
    if (settings.undecided(path)) return;
    if (const auto value = settings.get<int64_t>(path))
      size = static_cast<int>(std::min<int64_t>(*value, std::numeric_limits<int>::max()));
  };
  read("zerorun.mesh.data", sizes.data);
  read("zerorun.mesh.tensor", sizes.tensor);
  read("zerorun.mesh.pipeline", sizes.pipeline);
  return sizes;
}

// `other`: a key with which DeepSpeed's configurations give the size of an axis. 0 and 1 mean the same.
void check_same_size(const Resolution& resolution, const std::string& axis, int size,
                     std::string_view other) {
  const Settings& settings = resolution.settings;
  if (!settings.given(other) || settings.undecided(other)) return;
  const auto found = settings.get<int64_t>(other);
  if (!found || std::max<int64_t>(*found, 1) == size) return;
  const std::string key = "zerorun.mesh." + axis;
  const bool is_key = settings.given(key);
  resolution.report(
      is_key ? std::string_view(key) : other, std::string(other) + " = " + std::to_string(*found),
      std::to_string(size) + " " + axis + (size == 1 ? " rank" : " ranks") + (is_key ? "" : " in the mesh"),
      "write the same size in both, or leave one of them out");
}

Sizes resolve_section(const Resolution& resolution, const MeshSizes& section, int world_size,
                      const Sizes& of_program) {
  const std::string ranks = std::to_string(world_size) + (world_size == 1 ? " rank" : " ranks");
  MeshSizes sizes;
  try {
    sizes = section.resolved(world_size);
  } catch (const UserError&) {
    resolution.report(
        "zerorun.mesh", "sizes that multiply to the number of ranks, " + ranks, describe(section),
        "change the sizes or the number of ranks (leave out \"data\": it is what the others leave)");
    return std::nullopt;
  }
  resolution.settings.derive("zerorun.mesh.data", int64_t{sizes.data});
  if (of_program && of_program->resolved(world_size) != sizes) {
    resolution.report("zerorun.mesh",
                      "the mesh of the program, " + describe(of_program->resolved(world_size)),
                      describe(sizes), "give the same sizes in both places, or leave one of them out");
  }
  return sizes;
}

// DeepSpeed's keys for tensor ranks and pipeline stages, if they ask for several; they must divide the ranks.
Sizes read_deepspeeds(const Resolution& resolution, std::optional<int> world_size) {
  int64_t divided = world_size.value_or(0);
  bool fits = true;
  const auto read = [&](std::string_view key) {
    if (resolution.settings.undecided(key)) return 1;
    const int64_t size = std::max<int64_t>(resolution.settings.get<int64_t>(key).value_or(1), 1);
    if (world_size && divided % size != 0) {
      resolution.report(key, "a divisor of the number of ranks, " + std::to_string(divided),
                        std::to_string(size), "change this size, or the number of ranks");
      fits = false;
      return 1;
    }
    divided /= size;
    return static_cast<int>(std::min<int64_t>(size, std::numeric_limits<int>::max()));
  };
  const MeshSizes sizes{.tensor = read("tensor_parallel.autotp_size"), .pipeline = read("pipeline.stages")};
  return sizes == MeshSizes() || !fits ? Sizes() : sizes;
}

}  // namespace

Sizes resolve_mesh(const Resolution& resolution, std::optional<int> world_size, const Sizes& of_program) {
  const Sizes section = read_section(resolution.settings);
  const Sizes sizes = section ? section : of_program ? of_program : read_deepspeeds(resolution, world_size);
  if (!sizes) {
    if (world_size) resolution.settings.derive("zerorun.mesh.data", int64_t{*world_size});
    return std::nullopt;
  }
  check_same_size(resolution, "tensor", sizes->tensor, "tensor_parallel.autotp_size");
  check_same_size(resolution, "pipeline", sizes->pipeline, "pipeline.stages");
  if (!world_size) return sizes;
  return section ? resolve_section(resolution, *section, *world_size, of_program)
                 : sizes->resolved(*world_size);
}

PipelineConfig resolve_pipeline(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  const bool uniform = settings.get<std::string>("pipeline.partition") == "uniform";
  return {.partition = uniform ? PipelineConfig::Partition::uniform : PipelineConfig::Partition::parameters,
          .reduces_by_window = settings.get<std::string>("pipeline.reduce") == "window",
          .recomputed_group = settings.get<int64_t>("pipeline.activation_checkpoint_interval").value_or(0)};
}

}  // namespace zerorun::config
