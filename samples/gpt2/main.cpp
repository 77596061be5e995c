// gpt2: trains a GPT-2 on text under ZeRO and writes some text with it.
//
//   zerorun --num_gpus 2 gpt2 --deepspeed ds_config.json --data FILE...
//
// Every rank runs this program; only rank 0 prints.
#include <zerorun/zerorun.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "samples/common/csv_log.h"
#include "samples/common/text.h"
#include "samples/gpt2/dataset.h"
#include "samples/gpt2/evaluate.h"
#include "samples/gpt2/generate.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/model_folder.h"
#include "samples/gpt2/options.h"
#include "samples/gpt2/own_sources.h"
#include "samples/gpt2/plan.h"
#include "samples/gpt2/report.h"
#include "samples/gpt2/resume.h"
#include "samples/gpt2/weights.h"
#include "samples/tokenizer/tokenizer_files.h"
#include "samples/tokenizer/utf8.h"

namespace samples {
namespace {

using zerorun::UserError;

Tokenizer open_tokenizer(const ProgramOptions& options) {
  if (!options.tokenizer.empty()) return load_tokenizer(options.tokenizer);
  std::error_code error;
  const std::filesystem::path init = options.init;
  for (const char* file : {"tokenizer.json", "vocab.json"}) {
    if (!init.empty() && std::filesystem::exists(init / file, error)) return load_tokenizer(init);
  }
  return Tokenizer::bytes();
}

Dataset open_data(const ProgramOptions& options, const Tokenizer& tokenizer, const zerorun::Config& config,
                  zerorun::Communicator& communicator, bool makes_tokens) {
  std::vector<std::filesystem::path> files(options.data.begin(), options.data.end());
  if (files.empty()) {
    // Not compiled in, so that the program can be copied to another machine.
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    files = own_sources(checkout_above(program.parent_path()));
  }
  return Dataset({.files = files,
                  .weights = options.weights,
                  .field = options.field,
                  .cache = options.cache_folder(),
                  .sampler = {.seq = options.seq,
                              .micro_batch = config.batch.micro_batch_size_per_gpu,
                              .accumulation = config.batch.gradient_accumulation_steps,
                              .world_size = config.mesh ? config.mesh->data : communicator.world_size(),
                              .seed = options.model.seed,
                              .sequential = options.sequential}},
                 tokenizer, communicator, makes_tokens);
}

void introduce(const ProgramOptions& options, const Dataset& data, const Tokenizer& tokenizer,
               zerorun::Engine& engine, const Gpt2& model) {
  const int64_t parameters = model->numel();
  const zerorun::Config& config = engine.config();
  std::printf("gpt2: %s parameters, %lld layers, hidden %lld; ZeRO stage %d on %d %s\n",
              with_commas(parameters).c_str(), static_cast<long long>(options.model.layers),
              static_cast<long long>(options.model.hidden), config.zero.stage,
              engine.communicator().world_size(), engine.communicator().world_size() == 1 ? "rank" : "ranks");
  if (config.mesh) std::printf("mesh: %s\n", describe(*config.mesh).c_str());
  std::printf("data: %s", data.description().c_str());
  if (!tokenizer.is_bytes()) std::printf("; %s kinds of token", with_commas(tokenizer.size()).c_str());
  std::printf("\n");
  if (engine.device().is_cpu())
    std::printf("precision: %s; fast on this processor: %s (--precision auto)\n",
                zerorun::name_of(config.precision.training), fast_precision().c_str());
  std::printf("%s", memory_table(engine.bytes_by_category(), engine.formula_bytes()).c_str());
  std::fflush(stdout);
}

bool is_divided(const zerorun::Engine& engine) {
  return engine.mesh().sizes().pipeline > 1;
}

// A step that the device may still be working on. Its results are read only when the next step's first
// forward has been queued behind it, so that a GPU never waits for this program.
struct StartedStep {
  StepRecord record;
  at::Tensor loss;  // sum over micro-steps, in host memory; complete when the gradient norm is known
};

// Copies through page-locked memory, so that the copy to a GPU does not wait for the work before it.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

// Starts one optimizer step. Calls finish_previous() after the first forward.
template <typename FinishPrevious>
StartedStep start_step(const zerorun::DataPosition& position, Gpt2& model, zerorun::Engine& engine,
                       const Dataset& data, const FinishPrevious& finish_previous) {
  const int64_t micro_steps = engine.config().batch.gradient_accumulation_steps;
  StartedStep step{.record = {.step = engine.global_steps()}, .loss = {}};
  at::Tensor loss_sum = at::zeros({}, at::dtype(at::kDouble).device(engine.device()));
  for (int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
    const Batch batch = data.batch(position.numbers(micro_step));
    const at::Tensor loss = [&] {
      const zerorun::AutocastScope autocast = engine.autocast();
      return model->loss(to_device(batch.tokens, engine.device()),
                         to_device(batch.attention_mask, engine.device()));
    }();
    if (micro_step == 0) {
      finish_previous();
      step.record.lr = engine.get_lr().front();
      step.record.loss_scale = engine.loss_scale();
    }
    engine.backward(loss);
    loss_sum += loss.detach();
    if (micro_step + 1 == micro_steps) step.loss = loss_sum.to(at::kCPU, /*non_blocking=*/true);
    engine.step();
  }
  return step;
}

// Likewise of a model that is divided among pipeline stages: one call runs all micro-steps.
StartedStep start_divided_step(const zerorun::DataPosition& position, zerorun::Engine& engine,
                               const Dataset& data) {
  StartedStep step{.record = {.step = engine.global_steps(),
                              .lr = engine.get_lr().front(),
                              .loss_scale = engine.loss_scale()},
                   .loss = {}};
  std::vector<zerorun::MicroBatch> window;
  const int64_t micro_steps = engine.config().batch.gradient_accumulation_steps;
  for (int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
    const Batch batch = data.batch(position.numbers(micro_step));
    window.push_back(Gpt2Impl::micro_batch(batch.tokens, batch.attention_mask));
    for (zerorun::Tensors* tensors : {&window.back().inputs, &window.back().labels}) {
      for (at::Tensor& tensor : *tensors) tensor = to_device(tensor, engine.device());
    }
  }
  step.loss = engine.train_batch(window).to(at::kCPU, /*non_blocking=*/true);
  return step;
}

// Waits for the step's results. Every rank of a data group gets the same record.
StepRecord finish_step(const StartedStep& step, zerorun::Engine& engine) {
  zerorun::Communicator& communicator = engine.mesh().data();
  StepRecord record = step.record;
  record.grad_norm = engine.get_global_grad_norm();
  record.skipped = engine.skipped_steps();
  if (is_divided(engine)) {
    record.loss = step.loss.item<double>();
    return record;
  }
  at::Tensor total = at::full({1}, step.loss.item<double>(), at::kDouble);
  communicator.all_reduce(total, "loss")->wait();
  record.loss = total.item<double>() / static_cast<double>(engine.config().batch.gradient_accumulation_steps *
                                                           communicator.world_size());
  return record;
}

// Prints the model's loss on the held-out text, if there is one.
void show_evaluation(const ProgramOptions& options, Gpt2& model, zerorun::Engine& engine,
                     const std::vector<TokenFile>& held_out) {
  if (held_out.empty()) return;
  const Evaluation found =
      evaluate(model, engine, held_out.front(), options.seq, engine.config().batch.micro_batch_size_per_gpu);
  if (engine.communicator().rank() != 0) return;
  std::printf("held-out text after step %lld: loss %.4f, perplexity %.2f, %.4f bits per byte\n",
              static_cast<long long>(engine.global_steps()), found.loss, found.perplexity,
              found.bits_per_byte);
  std::fflush(stdout);
}

void train(const ProgramOptions& options, Gpt2& model, zerorun::Engine& engine, const Dataset& data,
           zerorun::DataPosition& position, const std::vector<TokenFile>& held_out) {
  const bool talks = engine.communicator().rank() == 0;
  const int64_t first = engine.global_steps();
  std::optional<CsvLog> csv;
  if (talks && !options.csv.empty()) csv.emplace(options.csv, first);
  const int64_t tokens_per_step = data.train_batch_size() * options.seq;
  const bool holds = engine.holds_generations();  // here the same on all ranks: finish() is a collective
  zerorun::LiveLine live(engine, {.steps = options.steps, .tokens_per_step = tokens_per_step});
  std::optional<StepRecord> first_record, last_record;
  const auto begin = std::chrono::steady_clock::now();
  engine.train();
  std::optional<StartedStep> started;
  const auto finish = [&] {
    if (!started) return;
    const StepRecord record = finish_step(*started, engine);
    started.reset();
    if (csv) csv->write(record);
    if (!first_record) first_record = record;
    last_record = record;
    live.show(
        {.steps = record.step + 1, .loss = record.loss, .lr = record.lr, .grad_norm = record.grad_norm});
  };
  for (int64_t step = first; step < options.steps; ++step) {
    if (is_divided(engine)) {
      finish();
      started = start_divided_step(position, engine, data);
    } else {
      started = start_step(position, model, engine, data, finish);
    }
    if (holds) finish();  // a restart from memory begins behind advance()
    position.advance(engine.config().batch.gradient_accumulation_steps);
    const bool ends = engine.should_stop() || step + 1 == options.steps;
    const auto is_due = [&](int64_t every) { return every > 0 && (step + 1) % every == 0; };
    const bool evaluates = is_due(options.eval_every) && !ends;
    const bool saves = !options.save_dir.empty() && (is_due(options.save_every) || ends);
    if (evaluates || saves || ends) finish();
    if (evaluates) live.end();
    if (evaluates) show_evaluation(options, model, engine, held_out);
    if (saves) {
      engine.save_checkpoint(options.save_dir, "",
                             {.client_state = client_state(data), .keep_last = options.keep_last});
    }
    if (ends) break;
  }
  live.end();
  if (talks && first_record) {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    std::printf("%s", summary(*first_record, *last_record, tokens_per_step, time.count()).c_str());
    std::fflush(stdout);
  }
  engine.wait_for_checkpoint();
  if (!talks) return;
  const int64_t steps = engine.global_steps() - first;
  if (engine.mesh().shards().world_size() == 1 || is_divided(engine) || steps <= 0) return;
  const int64_t micro_steps = steps * engine.config().batch.gradient_accumulation_steps;
  std::printf("%s", traffic_report(engine, model->numel(), micro_steps).c_str());
}

// --init may be a folder with a config.json but no weights: then the initial weights are random.
bool has_weights_to_load(const ProgramOptions& options) {
  if (options.init.empty()) return false;
  std::error_code error;
  const bool has_config = std::filesystem::exists(std::filesystem::path(options.init) / "config.json", error);
  return !has_config || has_weights(options.init);
}

// At stage 3, and divided among pipeline stages, the model may be too large for one rank. So building it
// allocates nothing, and initialize() creates the values that this rank has, bucket by bucket.
Gpt2 build_model(const ProgramOptions& options, const zerorun::Config& config) {
  std::optional<zerorun::DeferredInit> deferred;
  const bool is_shared = config.zero.stage == 3 || options.pipeline > 1;
  if (is_shared && !has_weights_to_load(options)) deferred.emplace();
  return Gpt2(options.model);
}

// Divides the cores among ranks, unless the launcher or the user has set OMP_NUM_THREADS.
void share_cores(int world_size) {
  if (std::getenv("OMP_NUM_THREADS")) return;
  at::set_num_threads(std::max(1, zerorun::count_usable_cores() / world_size));
}

void save_model(const ProgramOptions& options, const Tokenizer& tokenizer, Gpt2& model,
                zerorun::Engine& engine) {
  if (options.save.empty()) return;
  const bool writes = engine.communicator().rank() == 0;
  if (!options.saves_folder() && is_divided(engine)) {
    const std::filesystem::path file = options.save;
    engine.save_16bit_model(folder_of(file), file.filename());
    return;
  }
  if (!options.saves_folder()) {
    zerorun::GatheredParameters whole(engine, model->parameters());  // all ranks take part, rank 0 writes
    if (writes) save_weights(*model, options.save);
    return;
  }
  engine.save_16bit_model(options.save);
  if (writes) write_model_config(model->options(), tokenizer, options.save);
}

void write_text_with(const ProgramOptions& options, const Tokenizer& tokenizer, Gpt2& model,
                     zerorun::Engine& engine) {
  if (options.generate == 0 || is_divided(engine)) return;
  engine.eval();
  std::vector<int32_t> tokens = generate(model, tokenizer.encode(options.prompt), tokenizer.size(),
                                         {.count = options.generate,
                                          .temperature = options.temperature,
                                          .top_k = options.top_k,
                                          .seed = options.model.seed});
  // The printed text ends at the first end-of-document token.
  if (const auto end = tokenizer.data().end_token)
    tokens.erase(std::ranges::find(tokens, *end), tokens.end());
  if (engine.communicator().rank() != 0) return;
  const std::string text = options.prompt + tokenizer.decode(tokens);
  std::printf("text: %s\n", printable(tokenizer.is_bytes() ? text : replace_invalid_utf8(text)).c_str());
}

int run(int argc, char** argv) {
  std::optional<ProgramOptions> options = parse_options(argc, argv);
  if (!options) return 0;
  const zerorun::Environment environment = zerorun::Environment::read();
  const Tokenizer tokenizer = open_tokenizer(*options);
  if (options->model.vocab == 0) options->model.vocab = tokenizer.size();
  if (options->model.vocab < tokenizer.size())
    throw UserError("--vocab " + std::to_string(options->model.vocab) + ": the tokenizer has " +
                    std::to_string(tokenizer.size()) + " tokens");
  std::optional<zerorun::MeshSizes> mesh;
  if (options->tensor_parallel > 1 || options->pipeline > 1) {
    mesh = zerorun::MeshSizes{.tensor = static_cast<int>(options->tensor_parallel),
                              .pipeline = static_cast<int>(options->pipeline)};
  }
  if (options->plan) return print_plan_of(*options, mesh);
  const zerorun::Config config = zerorun::load_config(
      options->deepspeed.config_file(), {.world_size = environment.world_size,
                                         .mesh = mesh,
                                         .arguments = options->hyperparameters.arguments(options->steps),
                                         .hidden_size = options->model.hidden});
  share_cores(environment.world_size);

  if (options->save_on_sigterm) zerorun::survive_termination();
  zerorun::InitializeOptions initialize_options;
  initialize_options.communicator = zerorun::connect(environment);
  initialize_options.output_folder = options->output_folder();
  zerorun::Communicator& communicator = *initialize_options.communicator;
  std::shared_ptr<zerorun::checkpoint::FolderLock> save_dir;  // held until the last checkpoint is saved
  if (!options->save_dir.empty())
    save_dir =
        zerorun::reserve_checkpoint_folder(options->save_dir, communicator, config.node_local_checkpoints);
  const bool makes_tokens = environment.local_rank == 0;
  const Dataset data = open_data(*options, tokenizer, config, communicator, makes_tokens);
  std::vector<TokenFile> held_out;
  if (!options->eval.empty())
    held_out = open_token_files({{{options->eval}, "", 0}}, tokenizer, options->cache_folder(), communicator,
                                makes_tokens);

  Gpt2 model = build_model(*options, config);
  if (has_weights_to_load(*options)) load_weights(*model, options->init);
  initialize_options.tensor_plan = model->tensor_plan();
  initialize_options.mesh = mesh;
  if (options->pipeline > 1) initialize_options.pipeline = model->pipeline();
  zerorun::Engine engine = zerorun::initialize(*model, config, initialize_options);
  const bool talks = environment.rank == 0;
  if (talks && !options->init.empty()) warn_of_dropout(options->init);
  zerorun::DataPosition position(data.samples(), options->model.seed);
  engine.attach(position);
  const zerorun::RestoredCheckpoint restored = resume(*options, data, engine, position);
  if (talks) introduce(*options, data, tokenizer, engine, model);
  if (talks && !restored.path.empty()) std::printf("resumed from %s\n", restored.path.c_str());

  train(*options, model, engine, data, position, held_out);
  if (engine.should_stop()) {
    if (talks)
      std::printf("ended by SIGTERM after step %lld, which is saved\n",
                  static_cast<long long>(engine.global_steps()));
    return 0;
  }
  show_evaluation(*options, model, engine, held_out);
  save_model(*options, tokenizer, model, engine);
  write_text_with(*options, tokenizer, model, engine);
  return 0;
}

}  // namespace
}  // namespace samples

int main(int argc, char** argv) {
  return zerorun::run_program([&] { return samples::run(argc, argv); });
}
