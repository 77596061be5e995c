// The engine on a device with streams: every hand-over of memory between streams is there, each is needed,
// the results are those of a device without streams, and the host waits only where it must.
#include <catch2/catch.hpp>
#include <vector>

#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/recording_device.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

const std::string kFp32;
const std::string kBf16 = R"("bf16": {"enabled": true},)";
const std::string kFp16 =
    R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 2, "hysteresis": 1},)";

struct Setting {
  int stage = 1;
  int ranks = 2;
  std::string precision = {};
  int accumulation = 1;
  bool overlap = true;
  int max_live = 600;  // less than the model has
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
};

std::string config_of(const Setting& setting) {
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(setting.accumulation) + R"(, "optimizer": )" + setting.optimizer + R"(,
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 0.01}},
      "gradient_clipping": 1.0, )" +
         setting.precision + R"("zero_optimization": {"overlap_comm": )" +
         (setting.overlap ? "true" : "false") + R"(, "stage": )" + std::to_string(setting.stage) +
         R"(, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": )" +
         std::to_string(setting.max_live) +
         R"(, "stage3_prefetch_bucket_size": 300, "stage3_max_reuse_distance": 0}})";
}

// What a run on several streams leaves behind, on rank 0.
struct Trained {
  std::vector<at::Tensor> parameters;
  double grad_norm = 0;
  double lr = 0;
  int64_t skipped = 0;
};

struct Program {
  int steps = 6;
  bool side_streams = false;            // forward or backward of a step run on another stream
  bool writes = false;                  // the program itself writes to parameters, on another stream
  bool two_backwards = false;           // before each step
  bool evaluates = false;               // between steps, on a stream that changes
  std::filesystem::path saves_to = {};  // a checkpoint behind each step
  int infinite_step = -1;               // in which rank 1 has gradients that are not finite
  std::function<void(int step, Engine& engine)> after_step = [](int, Engine&) {};
};

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

// Where a program itself writes to what it reads on another stream, it has to put that in order itself.
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
                 Recording* recording, Trained& result) {
  const int rank = communicator->rank();
  DeepNet net;
  fill(*net, 7);
  InitializeOptions options;
  options.bucket_numel = 200;
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
      at::Tensor second = program.two_backwards ? loss_of(micro + 5) : at::Tensor();
      streams.set_current(side_backward ? kSideStream : 0);
      engine.backward(loss);
      if (program.two_backwards) engine.backward(second);
      if (program.writes && step == 2) write_to_parameters(net, engine, recording);
      streams.set_current(0);
      engine.step();
    }
    if (program.evaluates) evaluate(net, engine, step);
    if (!program.saves_to.empty()) engine.save_checkpoint(program.saves_to);
    program.after_step(step, engine);
  }
  engine.synchronize();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach().clone());
  if (rank != 0) return;
  result.parameters = parameters;
  result.grad_norm = engine.get_global_grad_norm();
  result.lr = engine.get_lr().front();
  result.skipped = engine.skipped_steps();
}

Trained run_plain(const Setting& setting, const Program& program) {
  Trained result;
  run_ranks(setting.ranks, [&](std::shared_ptr<Communicator> communicator) {
    run_program(setting, program, std::move(communicator), nullptr, result);
  });
  return result;
}

Trained run_recorded(const Setting& setting, const Program& program, std::vector<Recording>& recordings) {
  Trained result;
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

void check_same(const Trained& a, const Trained& b) {
  REQUIRE(a.parameters.size() == b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) CHECK(torch::equal(a.parameters[i], b.parameters[i]));
  CHECK(a.grad_norm == b.grad_norm);
  CHECK(a.lr == b.lr);
  CHECK(a.skipped == b.skipped);
}

void check_beside_plain(const Setting& setting, const Program& program) {
  std::vector<Recording> recordings(setting.ranks);
  const Trained recorded = run_recorded(setting, program, recordings);
  check_clean(recordings);
  check_same(recorded, run_plain(setting, program));
}

}  // namespace

TEST_CASE("streams: no hand-over is missing, and the bits are those of a device without streams") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int ranks = GENERATE(1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  const int accumulation = GENERATE(1, 3);
  const bool overlap = GENERATE(false, true);
  CAPTURE(stage, ranks, precision, accumulation, overlap);
  const Setting setting{stage, ranks, precision, accumulation, overlap};
  check_beside_plain(setting, {});
  check_beside_plain(setting, {.side_streams = true});
}

TEST_CASE("streams: writes by the program, scopes and late gradients are handed over too") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int ranks = GENERATE(1, 2);
  const std::string precision = GENERATE(kFp32, kBf16);
  const bool side_streams = GENERATE(false, true);
  CAPTURE(stage, ranks, precision, side_streams);
  const Setting setting{stage, ranks, precision};
  check_beside_plain(setting, {.side_streams = side_streams, .writes = true});
  check_beside_plain(setting, {.side_streams = side_streams, .two_backwards = true});
  const TemporaryFolder folder;
  check_beside_plain(setting, {.side_streams = side_streams, .writes = true, .saves_to = folder / "a"});
}

TEST_CASE("streams: what evaluation gathers between steps is handed over, and stays allocated") {
  const int ranks = GENERATE(2, 3);
  const int max_live = GENERATE(600, 700, 100000);
  const bool side_streams = GENERATE(false, true);
  CAPTURE(ranks, max_live, side_streams);
  const Setting setting{.stage = 3, .ranks = ranks, .max_live = max_live};
  std::vector<Recording> recordings(ranks);
  std::vector<int64_t> allocations;
  Program program{.side_streams = side_streams, .evaluates = true};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() == 0) allocations.push_back(recordings[0].allocations);
  };
  const Trained recorded = run_recorded(setting, program, recordings);
  check_clean(recordings);
  // With 700 all parameters fit into the limit, and not the arena beside them.
  for (size_t step = 4; step < allocations.size() && max_live != 700; ++step) {
    CHECK(allocations[step] == allocations[step - 1]);
  }
  program.after_step = [](int, Engine&) {};
  check_same(recorded, run_plain(setting, program));
}

TEST_CASE("streams: optimizers that look at whole parameters hand over what they send") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16);
  const std::string type = GENERATE(as<std::string>(), "Lamb", "Muon");
  CAPTURE(stage, precision, type);
  const Setting setting{.stage = stage,
                        .ranks = 2,
                        .precision = precision,
                        .optimizer = R"({"type": ")" + type + R"(", "params": {"lr": 0.01}})"};
  check_beside_plain(setting, {.side_streams = true});
}

TEST_CASE("streams: without any one kind of hand-over something is out of order") {
  const TemporaryFolder folder;
  for (int handover = 0; handover < kHandovers; ++handover) {
    const auto dropped = static_cast<Handover>(handover);
    int64_t waits = 0;
    size_t violations = 0;
    std::string first;
    for (int stage : {1, 2, 3}) {
      std::vector<Recording> recordings(2);
      for (Recording& recording : recordings) recording.dropped = dropped;
      run_recorded({.stage = stage, .ranks = 2, .precision = kBf16},
                   {.side_streams = true, .writes = true, .saves_to = folder / "a"}, recordings);
      for (const Recording& recording : recordings) {
        waits += recording.waits[handover];
        violations += recording.checker.violations().size();
        if (first.empty() && !recording.checker.violations().empty()) {
          first = recording.checker.violations().front();
        }
      }
    }
    INFO("without the waits for " << name_of(dropped));
    CHECK(waits == 0);
    CHECK(violations > 0);
    std::printf("without %-9s %5zu violations, as: %s\n", name_of(dropped), violations, first.c_str());
  }
}

TEST_CASE("streams: a step that is found out later leaves what a step found out at once leaves") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  const int infinite_step = GENERATE(1, 5);
  CAPTURE(stage, precision, infinite_step);
  const Setting setting{.stage = stage, .ranks = 2, .precision = precision};
  check_beside_plain(setting, {.infinite_step = infinite_step});
}

TEST_CASE("streams: a step waits for no device unless the loss scale does, and allocates nothing") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  CAPTURE(stage, precision);
  std::vector<Recording> recordings(2);
  struct Counts {
    int64_t host_waits, allocations, frees;
    bool operator==(const Counts&) const = default;
  };
  std::vector<Counts> counts;
  Program program{.steps = 8};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() != 0) return;
    counts.push_back({recordings[0].host_waits, recordings[0].allocations, recordings[0].frees});
  };
  run_recorded({.stage = stage, .ranks = 2, .precision = precision}, program, recordings);
  check_clean(recordings);
  // The wait of a step without a loss scale is for the step before it.
  for (size_t step = 4; step < counts.size(); ++step) {
    CHECK(counts[step].host_waits - counts[step - 1].host_waits == 1);
    CHECK(counts[step].allocations == counts[step - 1].allocations);
    CHECK(counts[step].frees == counts[step - 1].frees);
  }
  // Initialisation waits once.
  CHECK(counts[0].host_waits == (precision == kFp16 ? 2 : 1));
}

TEST_CASE("streams: a model trains to the same bits in every precision and stage") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  CAPTURE(stage, precision);
  const std::string config = config_of({.stage = stage, .precision = precision, .accumulation = 2});
  RunOptions options{.world_size = 2, .steps = 4, .bucket_numel = {}, .group_weight_decay = {}};
  options.inject_inf_steps = {2};
  const RunResult plain = train_tiny_gpt2(config, options);
  std::vector<Recording> recordings(2);
  options.communicator_for = [&](std::shared_ptr<Communicator> communicator) {
    Recording& recording = recordings.at(communicator->rank());
    return make_recording_communicator(std::move(communicator), recording);
  };
  check_same_bits(train_tiny_gpt2(config, options), plain);
  check_clean(recordings);
}

}  // namespace zerorun::testing
