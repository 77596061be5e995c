#include "tests/engine/streams_support.h"

#include <catch2/catch.hpp>
#include <optional>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

at::Tensor batch(const Engine& engine, int step, int rank) {
  return values({4, 12}, 1000 * step + rank + 1).to(engine.dtype());
}

struct DeepNetImpl : torch::nn::Module {
  DeepNetImpl() {
    for (int layer = 0; layer < 4; ++layer) {
      layers->push_back(torch::nn::Linear(12, 12));
    }
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(DeepNet);

// Makes stream `after` wait for stream `before`. A program that writes to parameters on one stream and reads
// them on another must do this itself.
void order(Recording* recording, StreamId before, StreamId after) {
  if (recording) recording->checker.wait(recording->checker.now(before), after);
}

void write_to_parameters(DeepNet& net, Engine& engine, Recording* recording) {
  torch::NoGradGuard no_grad;
  order(recording, 0, kSideStream);
  for (at::Tensor& parameter : net->parameters()) parameter.mul_(0.5);
  GatheredParameters scope(engine, {net->parameters().front()}, 0);
  if (engine.communicator().rank() == 0) net->parameters().front().add_(0.25);
  order(recording, kSideStream, 0);
}

void halve_gradients(DeepNet& net, Engine& engine) {
  ParameterStates states(engine);
  for (const at::Tensor& parameter : net->parameters())
    states.write_gradient(parameter, states.read_gradient(parameter) / 2);
}

void evaluate(DeepNet& net, Engine& engine, int step) {
  torch::NoGradGuard no_grad;
  Streams& streams = engine.communicator().device().streams();
  net->eval();
  for (StreamId stream : {StreamId{0}, kSideStream}) {
    streams.set_current(step % 2 == 0 ? stream : 0);
    net->forward(batch(engine, step, engine.communicator().rank()));
  }
  streams.set_current(0);
  net->train();
}

void run_program(const Setting& setting, const Program& program, std::shared_ptr<Communicator> communicator,
                 Recording* recording, StreamRun& result) {
  const int rank = communicator->rank();
  DeepNet net;
  fill(*net, 7);
  InitializeOptions options;
  options.bucket_numel = 200;
  std::optional<torch::optim::AdamW> client;
  if (setting.client) client.emplace(net->parameters(), torch::optim::AdamWOptions(0.01));
  options.optimizer = setting.client ? &*client : nullptr;
  Engine engine = make_engine(*net, config_of(setting), communicator, options);
  Streams& streams = communicator->device().streams();
  for (int step = 0; step < program.steps; ++step) {
    const bool side_forward = program.side_streams && step % 3 != 2;
    const bool side_backward = program.side_streams && step % 3 != 0;
    for (int micro = 0; micro < setting.accumulation; ++micro) {
      streams.set_current(side_forward ? kSideStream : 0);
      auto loss_of = [&](int number) {
        at::Tensor loss = net->forward(batch(engine, 10 * step + number, rank)).to(torch::kFloat).sum();
        return step == program.infinite_step && rank == 1 ? loss * INFINITY : loss;
      };
      at::Tensor loss = loss_of(micro);
      const bool two_backwards = program.two_backwards && step < program.one_backward_from;
      at::Tensor second = two_backwards ? loss_of(micro + 5) : at::Tensor();
      streams.set_current(side_backward ? kSideStream : 0);
      engine.backward(loss);
      if (two_backwards) engine.backward(second);
      if (program.writes && step == 2) write_to_parameters(net, engine, recording);
      streams.set_current(0);
      if (program.halves_gradients && micro + 1 == setting.accumulation) halve_gradients(net, engine);
      engine.step();
    }
    if (program.reads_raw)
      for (const at::Tensor& parameter : net->parameters()) streams.note_use(parameter, false);
    if (program.evaluates) program.before_evaluation(engine);
    if (program.evaluates) evaluate(net, engine, step);
    if (!program.saves_to.empty()) engine.save_checkpoint(program.saves_to);
    program.after_step(step, engine);
  }
  engine.synchronize();
  const std::vector<at::Tensor> parameters = copies_of(*net);
  if (rank != 0) return;
  result.parameters = parameters;
  result.grad_norm = engine.get_global_grad_norm();
  result.lr = engine.get_lr().front();
  result.skipped = engine.skipped_steps();
}

}  // namespace

std::string in_files_of(const std::filesystem::path& folder) {
  const std::string place = R"({"device": "nvme", "nvme_path": ")" + folder.string() + "\"";
  return R"(, "offload_optimizer": )" + place + R"(}, "offload_param": )" + place + R"(, "max_in_cpu": 0})";
}

std::string config_of(const Setting& setting) {
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(setting.accumulation) +
         (setting.client ? "" : R"(, "optimizer": )" + setting.optimizer) + R"(,
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 0.01}},
      "gradient_clipping": 1.0, )" +
         setting.precision + R"("zero_optimization": {"overlap_comm": )" +
         (setting.overlap ? "true" : "false") + R"(, "stage": )" + std::to_string(setting.stage) +
         R"(, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": )" +
         std::to_string(setting.max_live) +
         R"(, "stage3_prefetch_bucket_size": 300, "stage3_max_reuse_distance": 0)" + setting.offload + "}}";
}

StreamRun run_plain(const Setting& setting, const Program& program) {
  StreamRun result;
  run_ranks(setting.ranks, [&](std::shared_ptr<Communicator> communicator) {
    run_program(setting, program, std::move(communicator), nullptr, result);
  });
  return result;
}

StreamRun run_recorded(const Setting& setting, const Program& program, std::vector<Recording>& recordings) {
  StreamRun result;
  run_ranks(setting.ranks, [&](std::shared_ptr<Communicator> communicator) {
    Recording& recording = recordings.at(communicator->rank());
    run_program(setting, program, make_recording_communicator(std::move(communicator), recording), &recording,
                result);
  });
  return result;
}

void check_clean(const std::vector<Recording>& recordings) {
  for (const Recording& recording : recordings) {
    const auto& violations = recording.checker.violations();
    CHECK(violations.empty());
    if (!violations.empty()) WARN(violations.front());
  }
}

void check_same(const StreamRun& a, const StreamRun& b) {
  REQUIRE(a.parameters.size() == b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) CHECK(torch::equal(a.parameters[i], b.parameters[i]));
  CHECK(a.grad_norm == b.grad_norm);
  CHECK(a.lr == b.lr);
  CHECK(a.skipped == b.skipped);
}

void check_beside_plain(const Setting& setting, const Program& program) {
  std::vector<Recording> recordings(setting.ranks);
  const StreamRun recorded = run_recorded(setting, program, recordings);
  check_clean(recordings);
  check_same(recorded, run_plain(setting, program));
}

}  // namespace zerorun::testing
