// A program outside of the source tree that uses every public name of ZeroRun, on one rank. test_install.sh
// checks that none is missing here. Ends with exit code 1, because it notes a failure.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/optim/sgd.h>
#include <zerorun/zerorun.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <optional>
#include <type_traits>

namespace {

namespace fs = std::filesystem;

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not as expected: " + what);
}

struct Line : torch::nn::Module {
  Line() : weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor loss() const { return weight.square().sum(); }

  at::Tensor weight;
};

template <class Expected>
void use_optimizer(const std::string& type) {
  const std::string text =
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": ")" + type + R"(", "params": {}}})";
  const zerorun::OptimizerConfig optimizer = zerorun::parse_config(text, type, 1).optimizer.value();
  expect(std::holds_alternative<Expected>(optimizer) && zerorun::name_of(optimizer) == type, type);
}

zerorun::Config use_config(const fs::path& folder) {
  const std::string text =
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})";
  const zerorun::Arguments arguments{{"optimizer.params.lr", 0.5}};
  const zerorun::LoadOptions options{.world_size = 1, .arguments = arguments};
  zerorun::Config config = zerorun::parse_config(text, "text", options);
  expect(std::get<zerorun::AdamConfig>(*config.optimizer).lr == 0.5, "lr");
  std::ofstream(folder / "config.json") << text;
  const zerorun::BatchConfig batch = zerorun::load_config(folder / "config.json", options).batch;
  expect(batch.train_batch_size == 2, "train_batch_size");

  const zerorun::ZeroConfig& zero = config.zero;
  const zerorun::OffloadOptimizerConfig& states = zero.offload_optimizer;
  const zerorun::OffloadParamConfig& parameters = zero.offload_param;
  expect(states.device == zerorun::OffloadDevice::none && parameters.device == states.device, "offload");
  const zerorun::AioConfig& aio = zero.aio;
  expect(aio.queue_depth == 8, "queue_depth");
  const zerorun::PrecisionConfig& precision = config.precision;
  expect(zerorun::size_of(precision.training) == 4 &&
             zerorun::name_of(zerorun::Dtype::bf16) == std::string("bf16"),
         "dtypes");
  expect(!zerorun::reason_against_narrow_states(zerorun::AdamConfig(), precision), "narrow states");
  const zerorun::LossScaleConfig& scale = precision.loss_scale;
  expect(!scale.fixed, "loss_scale");
  const zerorun::PythonConfig& python = config.python;
  expect(python.leaf_names.empty(), "leaf modules");

  use_optimizer<zerorun::AdamConfig>("AdamW");
  use_optimizer<zerorun::SgdConfig>("SGD");
  use_optimizer<zerorun::AdagradConfig>("Adagrad");
  use_optimizer<zerorun::RmspropConfig>("RMSprop");
  use_optimizer<zerorun::LionConfig>("Lion");
  use_optimizer<zerorun::LambConfig>("Lamb");
  use_optimizer<zerorun::MuonConfig>("Muon");
  expect(zerorun::MuonConfig().newton_schulz == zerorun::NewtonSchulz::gram, "Newton-Schulz");
  return config;
}

void use_schedules() {
  const zerorun::PerGroup rates = std::vector<double>{0.5, 0.25};
  const zerorun::Warmup warmup{.num_steps = 4, .type = zerorun::WarmupType::linear};
  const std::vector<zerorun::SchedulerConfig> schedules = {
      zerorun::WarmupLr{.max_lr = rates, .warmup = warmup},
      zerorun::WarmupDecayLr{.max_lr = rates, .warmup = warmup, .total_num_steps = 200},
      zerorun::WarmupCosineLr{.warmup = warmup, .total_num_steps = 200},
      zerorun::OneCycle{.min_lr = 0.1, .max_lr = rates}, zerorun::LrRangeTest{.min_lr = rates}};
  for (const zerorun::SchedulerConfig& schedule : schedules)
    expect(zerorun::scheduled_values(schedule, 1, 0.5, 100).lr > 0, "a learning rate");
}

void use_mesh(const std::shared_ptr<zerorun::Communicator>& world) {
  const zerorun::MeshSizes sizes{.data = 0, .tensor = 2};
  const zerorun::MeshCoordinates place = zerorun::coordinates_of(3, sizes.resolved(4));
  expect(zerorun::rank_at(place, sizes.resolved(4)) == 3, "rank_at()");
  expect(zerorun::with_replicas_of({.data = 4, .replicate = 2}, sizes).replicate == 2, "with_replicas_of()");
  const zerorun::Mesh mesh(world, {.data = 1});
  for (int axis = 0; axis < zerorun::kMeshAxes; ++axis) {
    const auto along = static_cast<zerorun::MeshAxis>(axis);
    expect(mesh.along(along).world_size() == zerorun::size_along(along, mesh.sizes()),
           zerorun::name_of(along));
  }
  const zerorun::RankGroup group{.name = "alone", .ranks = {0}};
  expect(world->split({group})->world_size() == 1, "split()");
  expect(zerorun::kLargeSum > 0, "kLargeSum");
}

std::shared_ptr<zerorun::Communicator> use_communicator() {
  zerorun::Environment environment = zerorun::Environment::read();
  environment.device = zerorun::DeviceChoice::cpu;
  environment.comm = zerorun::CommChoice::automatic;
  std::shared_ptr<zerorun::Communicator> communicator = zerorun::connect(environment);
  const at::Tensor sum = communicator->allocate(4, at::kFloat);
  const std::unique_ptr<zerorun::Work> work = communicator->all_reduce(sum, "a sum");
  work->wait();
  const zerorun::Volume& volume = communicator->volume();
  for (int kind = 0; kind < zerorun::kCollectiveKinds; ++kind)
    expect(volume.elements(static_cast<zerorun::Collective>(kind)) == 0, "one rank sends nothing");

  zerorun::CollectiveCall call{zerorun::Collective::broadcast, sum, sum, 0, "a label", ""};
  call.sum_groups = zerorun::SumGroups();
  expect(call.groups().empty(), "sums of all ranks in one order");
  expect(zerorun::describe(call) == zerorun::name_of(call.kind) + std::string(" of a label"), "describe()");
  expect(zerorun::describe_disagreement(0, "one", 1, "two").starts_with("ranks disagree"), "a disagreement");
  zerorun::check_not_forked(zerorun::HomeProcess(), 0, "a program");
  use_mesh(communicator);
  return communicator;
}

void use_files(const fs::path& folder) {
  const std::vector<zerorun::TensorToStore> tensors = {{.name = "weight", .dtype = "F32", .shape = {2}}};
  expect(zerorun::safetensors_header(tensors).size() % 8 == 0, "a header");
  const std::array<float, 2> values = {1, 2};
  zerorun::SafetensorsFolder written(zerorun::checkpoint::local_file_system(), folder, tensors, 1 << 20,
                                     "model", zerorun::Replaceable::none);
  written.write(std::as_bytes(std::span(values)));
  expect(written.finish() == std::vector<std::string>{"model.safetensors"}, "names of files");
  const zerorun::SafetensorsReader read(folder);
  const zerorun::TensorInfo& info = read.tensors().at("weight");
  expect(zerorun::to_string(info) == "F32 " + zerorun::to_string(info.shape), "a tensor's text");
  expect(read.read("weight").size() == sizeof(values) && zerorun::kSafetensorsMemoryFactor > 0,
         "a tensor's bytes");
}

void use_engine(const zerorun::Config& config, std::shared_ptr<zerorun::Communicator> communicator,
                const fs::path& folder) {
  Line line;
  zerorun::InitializeOptions options;
  options.communicator = communicator;
  options.parameter_groups = {zerorun::ParameterGroup{.parameters = {line.weight}, .lr = 0.25}};
  options.schedule = zerorun::Schedule([](int64_t, int) { return zerorun::ScheduledValues(0.125); });
  const zerorun::Model model = zerorun::model_of(line);
  zerorun::Engine engine = zerorun::initialize(model, config, options);

  engine.backward(line.loss());
  zerorun::ParameterStates states(engine);
  expect(states.read_gradient(line.weight).sum().item<double>() == 8, "a gradient");
  engine.step();
  expect(engine.get_lr() == std::vector<double>{0.125}, "the schedule's learning rate");
  { zerorun::GatheredParameters scope(engine, {line.weight}, 0); }
  zerorun::GatherScope(engine, {line.weight}, std::nullopt).close(false);
  engine.offload_states({zerorun::OffloadedState::moments});
  engine.reload_states();
  const zerorun::BytesByCategory bytes = engine.bytes_by_category();
  const zerorun::ResidencyReport residency = engine.residency();
  expect(bytes.parameters > 0 && !residency.lost_ranks, "figures");

  const std::shared_ptr<zerorun::checkpoint::FolderLock> lock =
      zerorun::reserve_checkpoint_folder(folder / "checkpoints", *communicator);
  zerorun::DataPosition position(10, 3);
  engine.attach(position);
  const auto own_state = [] { return zerorun::ClientState{.json = "7"}; };
  expect(!engine.load_newest(folder / "checkpoints", {.client_state = own_state}), "no checkpoint");
  engine.hold_generation();
  position.advance();
  engine.save_checkpoint(folder / "checkpoints", "one", zerorun::CheckpointOptions{.client_state = "7"});
  engine.wait_for_checkpoint();
  zerorun::LiveLine live(engine, {.steps = 1, .tokens_per_step = 2});
  live.show(zerorun::LiveStep{.steps = 1, .loss = 0.5});
  live.end();
  const zerorun::CheckpointProgress progress = engine.checkpoint_progress();
  const zerorun::RestoredCheckpoint restored =
      engine.load_checkpoint(folder / "checkpoints", "one", zerorun::RestoreOptions{});
  expect(!progress.is_writing && restored.client_state == "7", "a checkpoint");
  expect(position.samples(-1).front() == zerorun::shuffled_sample(0, 10, 3), "a position");
  expect(zerorun::permute(0, 1, 5) == 0, "a permutation");

  try {
    *zerorun::EngineStateHandle(nullptr);
    expect(false, "an empty handle");
  } catch (const zerorun::UserError&) {
  }
}

void use_optimizers(const std::shared_ptr<zerorun::Communicator>& communicator) {
  {
    const Line line;
    zerorun::ZeroRedundancyOptimizer optimizer(torch::optim::SGD({line.weight}, 0.25),
                                               zerorun::ZeroRedundancyOptions{.communicator = communicator});
    line.loss().backward();
    optimizer.step();
    expect(line.loss().item<double>() == 1, "a step");
  }
  Line line;
  torch::optim::SGD sgd(line.parameters(), 0.25);
  const auto optimizer = zerorun::enable_zero(line, sgd, 2, communicator);
  line.loss().backward();
  optimizer->step();
  expect(line.loss().item<double>() == 1, "a step");
}

void use_deferred_init() {
  at::Tensor deferred;
  {
    const zerorun::DeferredInit scope;
    deferred = at::ones({3});
  }
  at::Tensor place = at::empty({3});
  zerorun::make_values(deferred, place);
  expect(zerorun::is_deferred(deferred) && place.equal(zerorun::make_tensor(deferred)), "deferred values");
}

void use_tensor_parallel(const std::shared_ptr<zerorun::Communicator>& communicator) {
  const zerorun::TensorPlanEntry entry{"*", zerorun::parse_tensor_style("colwise"),
                                       zerorun::TensorCut{.unit = 2}};
  const zerorun::TensorPlan plan{entry};
  const int64_t sizes[] = {4};
  const zerorun::PlannedShare share =
      zerorun::share_of(*zerorun::find_entry(plan, "weight"), "weight", sizes, 2);
  expect(share.split.size_of_part(0) == 2, zerorun::name_of(zerorun::TensorStyle::colwise));
  zerorun::InitializeOptions options{.communicator = communicator};
  options.tensor_plan = plan;
  Line model;
  zerorun::Engine engine = zerorun::initialize(
      model,
      zerorun::parse_config(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"}})", "one",
                            1),
      options);
  zerorun::verify_plan(
      engine, zerorun::model_of(model), [&] { return model.loss(); }, [&] { return model.loss(); });
  const at::Tensor loss =
      zerorun::vocab_parallel_cross_entropy(engine, model.weight, at::ones({1, 4}), at::ones({1}, at::kLong));
  expect(loss.item<double>() > 1.38, "log 4");
}

void use_recomputation(const std::shared_ptr<zerorun::Communicator>& communicator) {
  struct Scale : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({3}));
    at::Tensor forward(const at::Tensor& x) { return x * weight; }
  };
  struct Twice : torch::nn::Module {
    std::shared_ptr<Scale> scale = register_module("scale", std::make_shared<Scale>());
  };
  Twice model;
  zerorun::InitializeOptions options{.communicator = communicator};
  const zerorun::Config config = zerorun::parse_config(
      R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
          "zerorun": {"recompute": {"every": 1}}})",
      "one", 1);
  const zerorun::RecomputeConfig& chosen = config.recompute;
  expect(chosen.every == 1, "every block");
  zerorun::Engine engine = zerorun::initialize(model, config, options);
  expect(zerorun::find_block(*model.scale) != nullptr, "a marked module");
  int calls = 0;
  const at::Tensor loss = [&] {
    const zerorun::AutocastScope autocast = engine.autocast();
    const at::Tensor x = zerorun::recomputable(*model.scale, at::ones({3}));
    return zerorun::recomputable(
               *model.scale, [&](const at::Tensor& given) { return ++calls, model.scale->forward(given); }, x)
        .sum();
  }();
  engine.backward(loss);
  engine.step();
  expect(calls == 2, "a block runs twice");
  const at::Tensor labels = at::zeros({1}, at::kLong);
  const zerorun::LinearCrossEntropyOptions in_parts{.tokens = 1};
  expect(
      zerorun::linear_cross_entropy(at::ones({1, 2}), at::ones({4, 2}), labels, {}, in_parts).item<double>() >
          1.38,
      "log 4");
}

void use_pipeline(const std::shared_ptr<zerorun::Communicator>& communicator) {
  struct Scale : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({3}));
    at::Tensor forward(const at::Tensor& x) { return x * weight; }
  };
  const auto layer = std::make_shared<Scale>();
  zerorun::Pipeline pipeline;
  pipeline.layers.push_back(zerorun::layer_of("layer", *layer));
  pipeline.loss = [](const zerorun::Tensors& outputs, const zerorun::Tensors&) { return outputs[0].sum(); };
  const zerorun::MicroBatch batch{.inputs = {at::ones({2, 3})}, .labels = {}};
  const auto seconds = zerorun::measure_layers(pipeline.layers, batch, *communicator);
  pipeline.cut = zerorun::PipelineCut{.by = zerorun::PipelineCut::By::seconds, .seconds = seconds};
  expect(std::string(zerorun::name_of(pipeline.cut->by)) == "seconds", "the cut's name");
  expect(zerorun::divide_layers(pipeline, 1) == std::vector<int>{0, 1}, "one stage");
  expect(zerorun::cut_by_number(3, 2) == std::vector<int>{0, 2, 3}, "two stages by number");
  expect(zerorun::cut_by_cost(std::vector<double>{1, 1, 2}, 2) == std::vector<int>{0, 2, 3}, "by cost");
  zerorun::InitializeOptions options{.communicator = communicator};
  options.pipeline = pipeline;
  zerorun::Engine engine = zerorun::initialize(
      *layer,
      zerorun::parse_config(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"}})", "one",
                            1),
      options);
  const std::vector<zerorun::MicroBatch> window{batch};
  const double before = engine.eval_batch(window).item<double>();
  expect(engine.train_batch(window).item<double>() == before, "the same loss");
  static_assert(std::is_class_v<zerorun::PipelineLayer>);
  const zerorun::PipelineConfig settings = engine.config().pipeline;
  expect(settings.partition == zerorun::PipelineConfig::Partition::parameters, "the config's partition");
}

void use_plan(const fs::path& folder) {
  const char* const arguments[] = {"program", "--plan", "--world", "2", "--memory", "1G", "--no-others"};
  const int place = zerorun::find_plan(7, arguments);
  const std::optional<zerorun::PlanRequest> request =
      zerorun::parse_plan_request(7 - place, arguments + place);
  Line model;
  const zerorun::PlannedForward forward = [&](zerorun::Engine&) { return model.loss(); };
  const zerorun::PlanReport report =
      zerorun::plan_training(model, folder / "config.json", request.value(), forward);
  const zerorun::RankPlan& plan = report.plan;
  expect(plan.peak.parameters > 0 && plan.activations.value_or(0) > 0, "a plan's bytes");
  const zerorun::SentPerStep& sent = plan.sent;
  expect(sent.reduced_bytes >= 0 && report.fits(), "what is sent");
  const std::vector<zerorun::PlanOfWorld>& others = report.others;
  const std::optional<zerorun::FittingConfig>& fitting = report.fitting;
  expect(others.empty() && !fitting, "no others");
  static_assert(std::is_class_v<zerorun::ConfigChange> && std::is_class_v<zerorun::PlannedTraining>);
  expect(!zerorun::to_text(report).empty() && !zerorun::to_json_text(report).empty(), "the plan's text");
  expect(zerorun::print_plan(report) == 0, "the plan fits");
}

void use_program() {
  static_assert(std::is_base_of_v<zerorun::Error, zerorun::CommError> &&
                std::is_base_of_v<zerorun::Error, zerorun::TrainingError>);
  try {
    zerorun::fail_check("condition", __FILE__, __LINE__, "detail");
  } catch (const zerorun::InternalError&) {
  }
  expect(zerorun::count_usable_cores() >= 1 && zerorun::cpu_quota().value_or(1) > 0, "cores");
  zerorun::survive_termination();
  expect(!zerorun::termination_requested(), "no termination");
  zerorun::note_failure();
  zerorun::give_noted_failures_an_exit_code();
}

}  // namespace

int main(int count, char** arguments) {
  return zerorun::run_program([=] {
    const zerorun::ProgramPart part("names");
    const fs::path folder = count > 1 ? arguments[1] : ".";
    const zerorun::Config config = use_config(folder);
    use_schedules();
    const std::shared_ptr<zerorun::Communicator> communicator = use_communicator();
    use_files(folder);
    use_engine(config, communicator, folder);
    use_optimizers(communicator);
    use_deferred_init();
    use_tensor_parallel(communicator);
    use_recomputation(communicator);
    use_pipeline(communicator);
    use_plan(folder);
    use_program();
    std::puts("every public name works");
    return 0;
  });
}
