#include "benchmarks/step_on_mesh.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "benchmarks/figures.h"
#include "comm/connect/rendezvous.h"

namespace zerorun {
namespace {

// The variants of a stage, in the order of their turns.
enum Place { kData, kTensor, kSilent, kPlaces };

Variant make_variant(const StepOptions& options, const MeshSizes& mesh, int stage,
                     std::shared_ptr<Communicator> communicator) {
  samples::Gpt2 model(options.model);
  StepOptions on_mesh = options;
  on_mesh.micro_batch = options.micro_batch * options.ranks / mesh.data;
  const nlohmann::json text = on_mesh.config({{"stage", stage}, {"overlap_comm", options.overlap}});
  InitializeOptions initialize_options;
  initialize_options.mesh = mesh;
  initialize_options.tensor_plan = model->tensor_plan();
  auto own = std::make_shared<SilenceableCommunicator>(std::move(communicator), true);
  initialize_options.communicator = own;
  const Config config = parse_config(text.dump(), "bench_step", {.world_size = options.ranks, .mesh = mesh});
  Engine engine = initialize(*model, config, initialize_options);
  return {true, false, false, own, model, std::move(engine), {}, {}, {}};
}

// The samples of all data ranks that have become tensor ranks of `engine`'s data rank.
at::Tensor tokens_of(const StepOptions& options, const Engine& engine) {
  const int together = options.ranks / engine.mesh().sizes().data;
  std::vector<at::Tensor> rows;
  for (int index = 0; index < together; ++index) {
    rows.push_back(random_tokens(options.model, options.micro_batch,
                                 engine.mesh().coordinates().data * together + index));
  }
  return at::cat(rows).to(engine.mesh().world().device().location());
}

double mean_loss(Variant& variant, const at::Tensor& tokens) {
  const Mesh& mesh = variant.engine.mesh();
  at::Tensor loss = train_step(variant, tokens).to(at::kDouble).reshape({1}) / mesh.sizes().data;
  mesh.data().all_reduce(loss, "losses")->wait();
  return loss.item<double>();
}

// Both compute the mean over the same samples.
void check_equal(double of_data, double of_tensor, const std::string& precision) {
  const double allowed = precision == "fp32" ? 1e-5 : 1e-2;
  if (std::abs(of_data - of_tensor) <= allowed * std::abs(of_data)) return;
  throw Error("the loss on the mesh is " + std::to_string(of_tensor) + ", and on data ranks " +
              std::to_string(of_data));
}

// Elements that this rank sends in one step: among data ranks, and among tensor ranks.
std::pair<double, double> sent_in_step(Variant& variant, const at::Tensor& tokens) {
  const Mesh& mesh = variant.engine.mesh();
  std::array<Communicator*, 2> groups = {&mesh.data(), &mesh.world()};
  if (mesh.has_groups()) groups[1] = &mesh.along(MeshAxis::tensor);
  for (Communicator* group : groups) group->volume().reset();
  train_step(variant, tokens);
  await_updates(variant);
  std::array<double, 2> sent{};
  for (size_t group = 0; group < groups.size(); ++group) {
    for (int kind = 0; kind < kCollectiveKinds; ++kind)
      sent[group] += groups[group]->volume().elements(static_cast<Collective>(kind));
  }
  return {sent[0], mesh.has_groups() ? sent[1] : 0};
}

// The median of what `compare` says of each round, since a round's variants run next to each other.
template <typename Compare>
double median_of(const std::vector<double>& a, const std::vector<double>& b, const Compare& compare) {
  std::vector<double> values;
  for (size_t round = 0; round < a.size(); ++round) values.push_back(compare(a[round], b[round]));
  return median(std::move(values));
}

nlohmann::json measure_stage(const StepOptions& options, const MeshSizes& mesh, int stage,
                             const std::shared_ptr<Communicator>& communicator, const WorkMeter& meter) {
  const MeshSizes only_data{.data = options.ranks};
  std::vector<Variant> variants;
  for (const MeshSizes& sizes : {only_data, mesh, mesh})
    variants.push_back(make_variant(options, sizes, stage, communicator));
  std::vector<at::Tensor> tokens;
  for (const Variant& variant : variants) tokens.push_back(tokens_of(options, variant.engine));
  check_equal(mean_loss(variants[kData], tokens[kData]), mean_loss(variants[kTensor], tokens[kTensor]),
              options.precision);
  // Ranks agree on the order of buckets in the first step.
  train_step(variants[kSilent], tokens[kSilent]);
  const auto sent_by_data = sent_in_step(variants[kData], tokens[kData]);
  const auto sent_by_tensor = sent_in_step(variants[kTensor], tokens[kTensor]);
  Communicator& tensor_group = variants[kSilent].engine.mesh().along(MeshAxis::tensor);
  dynamic_cast<SilenceableCommunicator&>(tensor_group).silence_sums();
  for (int round = -1; round < options.rounds; ++round) {
    for (size_t place = 0; place < kPlaces; ++place) {
      const StepCost cost = time_step(variants[place], tokens[place], *communicator, meter);
      if (round >= 0) variants[place].note(cost);
    }
  }
  const Variant &data = variants[kData], &tensor = variants[kTensor], &silent = variants[kSilent];
  const auto ratio = [](double a, double b) { return a / b; };
  return {{"stage", stage},
          {"data_ms", median(data.milliseconds)},
          {"mesh_ms", median(tensor.milliseconds)},
          {"ratio", median_of(tensor.milliseconds, data.milliseconds, ratio)},
          {"without_all_reduces_ms", median(silent.milliseconds)},
          {"exposed_ms", median_of(tensor.milliseconds, silent.milliseconds, std::minus<>())},
          {"data_cpu_ms", median(data.cpu_milliseconds)},
          {"mesh_cpu_ms", median(tensor.cpu_milliseconds)},
          {"cpu_ratio", median_of(tensor.cpu_milliseconds, data.cpu_milliseconds, ratio)},
          {"without_all_reduces_cpu_ms", median(silent.cpu_milliseconds)},
          {"sent_by_data_ranks", sent_by_data.first},
          {"sent_on_mesh_among_data_ranks", sent_by_tensor.first},
          {"sent_on_mesh_among_tensor_ranks", sent_by_tensor.second}};
}

void report(const StepOptions& options, const MeshSizes& mesh, const nlohmann::json& result) {
  if (options.json) {
    std::printf("%s\n", result.dump(2).c_str());
    return;
  }
  std::printf(
      "step of the slowest of %d ranks, 1 thread each, medians of %d; %.1f M parameters, seq %lld, %lld "
      "samples, %s\n"
      "data %d x tensor %d (mesh) beside data %d, and without the all-reduces of tensor ranks\n"
      "                                          exposed         all ranks, CPU ms       10^6 elements sent "
      "by "
      "a rank, among\n"
      "stage   data ms  mesh ms  ratio  without       ms     data     mesh  without    data ranks; mesh: "
      "data "
      "ranks, tensor ranks\n",
      options.ranks, options.rounds, result["parameters"].get<double>() / 1e6,
      static_cast<long long>(options.model.positions), result["samples"].get<long long>(),
      options.precision.c_str(), mesh.data, mesh.tensor, options.ranks);
  for (const nlohmann::json& stage : result["stages"]) {
    const auto number = [&](const char* name) { return stage[name].get<double>(); };
    std::printf("%5d  %8.1f %8.1f %6.3f %8.1f %8.1f %8.1f %8.1f %8.1f    %10.2f; %10.2f, %10.2f\n",
                stage["stage"].get<int>(), number("data_ms"), number("mesh_ms"), number("ratio"),
                number("without_all_reduces_ms"), number("exposed_ms"), number("data_cpu_ms"),
                number("mesh_cpu_ms"), number("without_all_reduces_cpu_ms"),
                number("sent_by_data_ranks") / 1e6, number("sent_on_mesh_among_data_ranks") / 1e6,
                number("sent_on_mesh_among_tensor_ranks") / 1e6);
  }
}

}  // namespace

MeshSizes parse_mesh(const std::string& text, int ranks) {
  const std::string expected = "--mesh " + text + ": expected sizes such as data=1,tensor=2";
  MeshSizes mesh;
  std::istringstream axes(text);
  for (std::string axis; std::getline(axes, axis, ',');) {
    const size_t equals = axis.find('=');
    const std::string name = axis.substr(0, equals);
    if (equals == std::string::npos || (name != "data" && name != "tensor")) throw UserError(expected);
    int& size = name == "data" ? mesh.data : mesh.tensor;
    const char* end = axis.data() + axis.size();
    const auto read = std::from_chars(axis.data() + equals + 1, end, size);
    if (read.ec != std::errc() || read.ptr != end || size < 1) throw UserError(expected);
  }
  if (mesh.tensor < 2) throw UserError(expected + ", with two tensor ranks or more");
  return mesh.resolved(ranks);
}

int run_step_on_mesh(const StepOptions& options, const MeshSizes& mesh) {
  const WorkMeter meter;
  at::set_num_threads(1);
  auto communicator = connect();
  nlohmann::json result{{"mesh", {{"data", mesh.data}, {"tensor", mesh.tensor}}},
                        {"parameters", samples::Gpt2(options.model)->numel()},
                        {"ranks", options.ranks},
                        {"rounds", options.rounds},
                        {"samples", options.micro_batch * options.ranks},
                        {"seq", options.model.positions},
                        {"overlap_comm", options.overlap},
                        {"precision", options.precision},
                        {"stages", nlohmann::json::array()}};
  for (int stage = 0; stage <= 3; ++stage)
    result["stages"].push_back(measure_stage(options, mesh, stage, communicator, meter));
  if (communicator->rank() == 0) report(options, mesh, result);
  return 0;
}

}  // namespace zerorun
