#include "engine/model_agreement.h"

#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "comm/agreement.h"

namespace zerorun {
namespace {

int64_t fingerprint(const std::string& text) {
  return static_cast<int64_t>(checkpoint::checksum_of(std::as_bytes(std::span(text))) >> 1);
}

// The first difference between two descriptions, whose first lines are settings and whose other lines are a
// parameter or buffer each.
std::string first_difference(const std::string& of_first, int first, const std::string& own, int rank) {
  constexpr size_t kShown = 300;
  std::istringstream theirs(of_first), ours(own);
  std::string one, other;
  std::getline(theirs, one);
  std::getline(ours, other);
  if (one != other)
    return "their configs, optimizers or schedules differ (`zerorun config diff` compares files)";
  while (one == other && theirs) {
    one = other = "nothing more";
    std::getline(theirs, one);
    std::getline(ours, other);
  }
  return "rank " + std::to_string(first) + " has " + one.substr(0, kShown) + " where rank " +
         std::to_string(rank) + " has " + other.substr(0, kShown);
}

// Throws UserError on all ranks unless each rank has the description of the rank that `first_of` names for
// it.
template <typename FirstOf>
void check_descriptions(const std::string& description, const FirstOf& first_of, Communicator& world) {
  if (world.device().location().is_meta()) return;  // a plan, whose other ranks are imagined
  at::Tensor prints = at::zeros({world.world_size()}, at::kLong);
  int64_t* data = prints.mutable_data_ptr<int64_t>();
  data[world.rank()] = fingerprint(description);
  const std::string label = "the ranks' model descriptions";
  world.all_reduce(prints, label)->wait();
  for (int rank = 1; rank < world.world_size(); ++rank) {
    const int first = first_of(rank);
    if (data[rank] == data[first]) continue;
    const bool is_shown = world.rank() == first || world.rank() == rank;
    const auto descriptions = exchange_texts(is_shown ? description : "", world, label);
    const std::string difference = first_difference(descriptions[first], first, descriptions[rank], rank);
    throw UserError(
        "rank " + std::to_string(rank) + " has another model or another config than rank " +
        std::to_string(first) + ": " + difference +
        "; names, order, shapes, strides, dtypes and groups of parameters and buffers and all settings must "
        "agree: build both the same way on every rank");
  }
}

std::string describe_model(const ModelParameters& model) {
  std::string description;
  auto describe = [&](const std::string& name, const at::Tensor& tensor) {
    description += c10::str("\n", name, " ", tensor.scalar_type(), tensor.sizes(), tensor.strides());
  };
  for (const NamedParameter& parameter : model.trained) {
    describe(parameter.name, parameter.tensor);
    if (!model.is_divided) description += " " + std::to_string(parameter.group);
  }
  for (const NamedParameter& parameter : model.frozen) describe(parameter.name, parameter.tensor);
  for (const auto* others : {&model.unbucketed, &model.unsaved}) {
    for (const NamedTensor& other : *others) describe(other.name, other.tensor);
  }
  return description;
}

}  // namespace

void check_ranks_agree(const ModelParameters& model, const std::string& settings, const Mesh& mesh) {
  const auto rank_0 = [](int) { return 0; };
  if (!mesh.has_groups()) return check_descriptions(settings + describe_model(model), rank_0, mesh.world());
  check_descriptions(settings, rank_0, mesh.world());
  const auto first_in_group = [&](int rank) {
    MeshCoordinates coordinates = coordinates_of(rank, mesh.sizes());
    coordinates.data = 0;
    if (model.has_tensor_plan) coordinates.tensor = 0;
    if (model.is_divided) coordinates.pipeline = 0;
    return rank_at(coordinates, mesh.sizes());
  };
  check_descriptions(describe_model(model), first_in_group, mesh.world());
}

}  // namespace zerorun
