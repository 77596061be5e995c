// The mesh of ranks: from the file's zerorun.mesh, or from the program.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/check.h"
#include "config/sections.h"

namespace zerorun::config {
namespace {

using Sizes = std::optional<MeshSizes>;

// An axis, with the key with which DeepSpeed's configurations give its size: 0 and 1 mean the same there.
struct Axis {
  std::string_view name;
  std::string_view key;
  std::string_view deepspeeds;
};
constexpr Axis kTensor{"tensor", "zerorun.mesh.tensor", "tensor_parallel.autotp_size"};
constexpr Axis kPipeline{"pipeline", "zerorun.mesh.pipeline", "pipeline.stages"};

std::optional<int> size_at(const Settings& settings, std::string_view key) {
  if (!settings.given(key) || settings.undecided(key)) return std::nullopt;
  const auto size = settings.get<int64_t>(key);
  if (!size) return std::nullopt;
  return static_cast<int>(std::clamp<int64_t>(*size, 1, std::numeric_limits<int>::max()));
}

std::optional<int> named_size(const Settings& settings, const Axis& axis) {
  const auto own = size_at(settings, axis.key);
  return own ? own : size_at(settings, axis.deepspeeds);
}

// "zerorun.mesh" if the file has it.
Sizes read_section(const Settings& settings) {
  const Setting* section = settings.find("zerorun.mesh");
  if (!section || section->source == Source::refused) return std::nullopt;
  MeshSizes sizes{.data = size_at(settings, "zerorun.mesh.data").value_or(MeshSizes().data)};
  sizes.tensor = size_at(settings, kTensor.key).value_or(1);
  sizes.pipeline = size_at(settings, kPipeline.key).value_or(1);
  sizes.replicate = size_at(settings, "zerorun.mesh.replicate").value_or(1);
  return sizes;
}

void check_same_size(const Resolution& resolution, const Axis& axis, int size) {
  const Settings& settings = resolution.settings;
  const auto found = size_at(settings, axis.deepspeeds);
  if (!found || *found == size) return;
  const bool is_key = settings.given(axis.key);
  resolution.report(is_key ? axis.key : axis.deepspeeds,
                    std::string(axis.deepspeeds) + " = " +
                        std::to_string(settings.get<int64_t>(axis.deepspeeds).value_or(*found)),
                    std::to_string(size) + " " + std::string(axis.name) + (size == 1 ? " rank" : " ranks") +
                        (is_key ? "" : " in the mesh"),
                    "write the same size in both, or leave one of them out");
}

// Likewise in engine/setup.cpp, for the mesh of a program.
void check_replicas(const Resolution& resolution, const MeshSizes& sizes) {
  const Settings& settings = resolution.settings;
  if (sizes.replicate == 1) return;
  const auto refuse = [&](const char* expected, const char* remedy) {
    resolution.report("zerorun.mesh.replicate", expected, std::to_string(sizes.replicate), remedy);
  };
  if (!settings.undecided("zero_optimization.stage") &&
      settings.get<int64_t>("zero_optimization.stage").value_or(0) == 0)
    refuse("1 at stage 0, where every rank has all states", "set zero_optimization.stage to 1, 2 or 3");
  if (settings.get<bool>("checkpoint.use_node_local_storage").value_or(false))
    refuse("1 with checkpoint.use_node_local_storage, as only the first replica saves",
           "save to a folder that all hosts share");
}

bool fits(const MeshSizes& sizes, int world_size) {
  try {
    sizes.resolved(world_size);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

Sizes resolve_section(const Resolution& resolution, const MeshSizes& section, int world_size,
                      const Sizes& of_program) {
  const std::string ranks = std::to_string(world_size) + (world_size == 1 ? " rank" : " ranks");
  MeshSizes sizes;
  try {
    sizes = section.resolved(world_size);
  } catch (const UserError&) {
    MeshSizes one_replica = section;
    one_replica.replicate = 1;
    if (section.replicate > 1 && fits(one_replica, world_size)) {
      const int data = one_replica.resolved(world_size).data;
      resolution.report("zerorun.mesh.replicate",
                        "a divisor of the number of data ranks, " + std::to_string(data),
                        std::to_string(section.replicate), "change it, or the number of ranks");
      return std::nullopt;
    }
    resolution.report(
        "zerorun.mesh", "sizes that multiply to the number of ranks, " + ranks, describe(section),
        "change the sizes or the number of ranks (leave out \"data\": it is what the others leave)");
    return std::nullopt;
  }
  resolution.settings.derive("zerorun.mesh.data", int64_t{sizes.data});
  check_replicas(resolution, sizes);
  if (of_program && with_replicas_of(sizes, *of_program).resolved(world_size) != sizes) {
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
  const auto read = [&](const Axis& axis) {
    const int size = size_at(resolution.settings, axis.deepspeeds).value_or(1);
    if (world_size && divided % size != 0) {
      resolution.report(axis.deepspeeds, "a divisor of the number of ranks, " + std::to_string(divided),
                        std::to_string(size), "change this size, or the number of ranks");
      fits = false;
      return 1;
    }
    divided /= size;
    return size;
  };
  const MeshSizes sizes{.tensor = read(kTensor), .pipeline = read(kPipeline)};
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
  check_same_size(resolution, kTensor, sizes->tensor);
  check_same_size(resolution, kPipeline, sizes->pipeline);
  if (!world_size) return sizes;
  return section ? resolve_section(resolution, *section, *world_size, of_program)
                 : sizes->resolved(*world_size);
}

NamedRanks named_ranks(const Settings& settings) {
  return {.tensor = named_size(settings, kTensor), .pipeline = named_size(settings, kPipeline)};
}

int resolve_sum_group(const Settings& settings) {
  return static_cast<int>(std::min<int64_t>(settings.get<int64_t>("zerorun.sum_group").value_or(0),
                                            std::numeric_limits<int>::max()));
}

PipelineConfig resolve_pipeline(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  const bool uniform = settings.get<std::string>("pipeline.partition") == "uniform";
  return {.partition = uniform ? PipelineConfig::Partition::uniform : PipelineConfig::Partition::parameters,
          .reduces_by_window = settings.get<std::string>("pipeline.reduce") == "window",
          .recomputed_group = settings.get<int64_t>("pipeline.activation_checkpoint_interval").value_or(0)};
}

}  // namespace zerorun::config
