#include "tests/support/tiny_gpt2.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "base/fnv1a.h"
#include "engine/gathered_parameters.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/sampler.h"
#include "samples/gpt2/weights.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/test_paths.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kSeq = 32;
constexpr size_t kTextBytes = 32768;
// FNV-1a hash of the text's bytes. Their sha256 is
// 6b24a465de31c6e83313e6c43a8c3a83c7d21329ac17ef28dd916d14bf0a72ba.
constexpr uint64_t kTextHash = 0xcc70d9aadc57e883ULL;

samples::Gpt2 load_model() {
  static std::mutex construction;  // all threads share LibTorch's default generator
  std::lock_guard lock(construction);
  samples::Gpt2 model(
      samples::Gpt2Options{.layers = 2, .hidden = 64, .heads = 4, .vocab = 256, .positions = kSeq});
  samples::load_weights(*model, source_folder() / "tests/golden/data/init_tiny_seed1234.safetensors");
  return model;
}

at::Tensor read_batch(const std::vector<int64_t>& offsets) {
  at::Tensor tokens = at::empty({static_cast<int64_t>(offsets.size()), kSeq}, at::kLong);
  int64_t* token = tokens.mutable_data_ptr<int64_t>();
  for (int64_t offset : offsets) token = std::copy_n(golden_text().begin() + offset, kSeq, token);
  return tokens;
}

InitializeOptions initialize_options(const RunOptions& options, samples::Gpt2Impl& model,
                                     std::shared_ptr<Communicator> communicator, const MeshSizes& mesh) {
  InitializeOptions result;
  result.communicator = std::move(communicator);
  result.bucket_numel = options.bucket_numel;
  result.tensor_plan = options.splits ? model.tensor_plan() : TensorPlan();
  if (mesh.pipeline > 1) result.pipeline = model.pipeline();
  if (options.group_weight_decay) {
    ParameterGroup matrices{
        .parameters = {}, .lr = {}, .weight_decay = *options.group_weight_decay, .betas = {}};
    ParameterGroup vectors{.parameters = {}, .lr = {}, .weight_decay = 0.0, .betas = {}};
    for (const at::Tensor& parameter : model.parameters()) {
      (parameter.dim() >= 2 ? matrices : vectors).parameters.push_back(parameter);
    }
    result.parameter_groups = {matrices, vectors};
  }
  return result;
}

// The tensors of this rank's pipeline stage, by the model's own cut. To be called before initialize(), which
// changes dtypes.
Tensors tensors_of_stage(samples::Gpt2Impl& model, int rank, const MeshSizes& mesh) {
  Pipeline pipeline = model.pipeline();
  pipeline.cut = PipelineCut();
  const std::vector<int> begins = divide_layers(pipeline, mesh.pipeline);
  const int stage = coordinates_of(rank, mesh).pipeline;
  Tensors tensors;
  for (int layer = begins[stage]; layer < begins[stage + 1]; ++layer) {
    const Tensors& more = pipeline.layers[layer].tensors;
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  return tensors;
}

at::Tensor whole_values(Engine& engine, const at::Tensor& parameter) {
  GatheredParameters whole(engine, {parameter});
  return parameter.detach().clone().cpu();
}

}  // namespace

const std::vector<uint8_t>& golden_text() {
  static const std::vector<uint8_t> text = [] {
    std::filesystem::path path =
        source_folder() / "tests/golden/data/GPL-3";  // in a bundle for another machine
    if (!std::filesystem::exists(path)) path = "/usr/share/common-licenses/GPL-3";
    std::ifstream file(path, std::ios::binary);
    std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    bytes.resize(std::min(bytes.size(), kTextBytes));
    if (bytes.size() != kTextBytes || fnv1a(std::as_bytes(std::span(bytes))) != kTextHash) {
      std::printf("skipped: %s is not the text that the golden traces were made with\n", path.c_str());
      std::exit(77);
    }
    return bytes;
  }();
  return text;
}

double RunResult::mean_loss(size_t step) const {
  double sum = 0;
  size_t count = 0;
  for (const auto& rank : losses[step]) {
    for (double loss : rank) sum += loss;
    count += rank.size();
  }
  return sum / static_cast<double>(count);
}

void train_rank(const std::string& config_text, const RunOptions& options,
                const std::shared_ptr<Communicator>& communicator, RunResult& result) {
  const int rank = communicator->rank();
  const Config config = parse_config(config_text, "test config", communicator->world_size());
  const MeshSizes mesh = config.mesh.value_or(MeshSizes()).resolved(communicator->world_size());
  const int64_t micro_steps = config.batch.gradient_accumulation_steps;
  const samples::Sampler sampler({.corpus_size = static_cast<int64_t>(kTextBytes),
                                  .seq = kSeq,
                                  .micro_batch = config.batch.micro_batch_size_per_gpu,
                                  .accumulation = micro_steps,
                                  .world_size = mesh.data,
                                  .seed = 0,
                                  .sequential = true});
  samples::Gpt2 model = load_model();
  const Tensors of_stage = tensors_of_stage(*model, rank, mesh);
  Engine engine = initialize(*model, config, initialize_options(options, *model, communicator, mesh));
  if (!options.resume_from.empty()) engine.load_checkpoint(options.resume_from);
  if (options.before_training) options.before_training(*model, rank);
  communicator->volume().reset();
  for (int64_t step = options.first_step; step < options.steps; ++step) {
    const std::vector<double> lrs = engine.get_lr();
    try {
      if (mesh.pipeline > 1) {
        std::vector<MicroBatch> window;
        for (int64_t micro = 0; micro < micro_steps; ++micro) {
          const at::Tensor tokens = read_batch(sampler.offsets(step, micro, coordinates_of(rank, mesh).data));
          window.push_back({.inputs = {tokens.to(engine.device())},
                            .labels = {samples::Gpt2Impl::labels_of(tokens).to(engine.device())}});
        }
        result.losses[step][rank].push_back(engine.train_batch(window).item<double>());
      } else {
        for (int64_t micro = 0; micro < micro_steps; ++micro) {
          const auto offsets = sampler.offsets(step, micro, coordinates_of(rank, mesh).data);
          at::Tensor loss = model->loss(read_batch(offsets).to(engine.device()));
          result.losses[step][rank].push_back(loss.item<double>());
          const bool inject = std::ranges::count(options.inject_inf_steps, step) > 0;
          engine.backward(inject ? loss * std::numeric_limits<float>::infinity() : loss);
          engine.step();
        }
      }
    } catch (const TrainingError&) {
      if (rank == 0) result.raised = step;
      break;
    }
    if (rank != 0) continue;
    result.lrs.push_back(lrs);
    result.betas.push_back(engine.get_betas());
    result.grad_norms.push_back(engine.get_global_grad_norm());
    result.loss_scales.push_back(engine.loss_scale());
    result.skipped.push_back(engine.skipped_steps());
  }
  if (options.after_training) options.after_training(engine);
  const ResidencyReport residency = engine.residency();
  const Volume volume = communicator->volume();
  for (const auto& item : model->named_parameters()) {
    const auto is_it = [&](const at::Tensor& each) { return each.is_same(item.value()); };
    if (std::ranges::none_of(of_stage, is_it)) continue;
    const at::Tensor values = options.splits
                                  ? whole_values(engine, item.value())
                                  : item.value().detach().clone().cpu();  // a collective at stage 3
    if (rank == 0) result.parameters.emplace_back(item.key(), values);
  }
  if (rank != 0) return;
  result.residency = residency;
  result.bytes = engine.bytes_by_category();
  result.formula_bytes = engine.formula_bytes();
  result.reduce_scattered = volume.elements(Collective::reduce_scatter);
  result.all_gathered = volume.elements(Collective::all_gather);
}

RunResult train_tiny_gpt2(const std::string& config, const RunOptions& options) {
  at::set_num_threads(1);
  golden_text();
  RunResult result;
  result.losses.resize(options.steps, std::vector<std::vector<double>>(options.world_size));
  const auto train = [&](std::shared_ptr<Communicator> communicator) {
    if (options.communicator_for) communicator = options.communicator_for(std::move(communicator));
    train_rank(config, options, communicator, result);
  };
  run_ranks(options.world_size, train, std::chrono::seconds(60), options.shares_memory);
  return result;
}

double largest_relative_loss_difference(const RunResult& a, const RunResult& b) {
  double worst = 0;
  for (size_t step = 0; step < a.losses.size(); ++step) {
    const double one = a.mean_loss(step), other = b.mean_loss(step);
    if (one == other) continue;  // both may be infinite
    const double difference = std::abs(one - other) / other;
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst;
}

void check_same_bits(const RunResult& a, const RunResult& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.grad_norms == b.grad_norms);
  CHECK(a.loss_scales == b.loss_scales);
  REQUIRE(a.parameters.size() == b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    INFO(a.parameters[i].first);
    REQUIRE_NOTHROW(expect_same(a.parameters[i].second, b.parameters[i].second, "values"));
  }
}

}  // namespace zerorun::testing
