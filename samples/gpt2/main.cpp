// gpt2: trains a GPT-2 on the bytes of text files under ZeRO and writes some text with it.
//
//   zerorun --num_gpus 2 gpt2 --deepspeed ds_config.json --data FILE...
//
// Every rank runs this program; only rank 0 prints.
#include <zerorun/zerorun.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "samples/common/csv_log.h"  // CsvLog
#include "samples/common/text.h"     // printable, with_commas
#include "samples/gpt2/corpus.h"     // read_corpus
#include "samples/gpt2/generate.h"   // generate
#include "samples/gpt2/model.h"      // Gpt2
#include "samples/gpt2/options.h"    // parse_options
#include "samples/gpt2/report.h"     // memory_table, Progress
#include "samples/gpt2/sampler.h"    // Sampler
#include "samples/gpt2/weights.h"    // load_weights, save_weights
#include "samples/tokenizer/tokenizer.h"

namespace zerorun {
namespace {

Corpus open_corpus(const ProgramOptions& options) {
  std::vector<std::filesystem::path> files(options.data.begin(), options.data.end());
  if (files.empty()) files = own_sources(ZERORUN_SOURCE_DIR);
  return read_corpus(files, options.model.positions + 1);
}

Sampler make_sampler(const ProgramOptions& options, const Corpus& corpus, const Config& config,
                     int world_size) {
  return Sampler({.corpus_size = static_cast<int64_t>(corpus.bytes.size()),
                  .seq = options.model.positions,
                  .micro_batch = config.batch.micro_batch_size_per_gpu,
                  .accumulation = config.batch.gradient_accumulation_steps,
                  .world_size = world_size,
                  .seed = options.model.seed,
                  .sequential = options.sequential});
}

// Returns tokens (micro-batch, seq), int64.
at::Tensor make_batch(const Corpus& corpus, const std::vector<int64_t>& offsets, int64_t seq) {
  at::Tensor tokens = at::empty({static_cast<int64_t>(offsets.size()), seq}, at::kLong);
  auto* token = tokens.mutable_data_ptr<int64_t>();
  for (const int64_t offset : offsets) {
    token = std::copy_n(corpus.bytes.begin() + offset, seq, token);
  }
  return tokens;
}

int64_t count_parameters(const Gpt2& model) {
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  return parameters;
}

void introduce(const ProgramOptions& options, const Corpus& corpus, const Sampler& sampler, Engine& engine,
               const Gpt2& model) {
  const int64_t parameters = count_parameters(model);
  const Config& config = engine.config();
  std::printf("gpt2: %s parameters, %lld layers, hidden %lld; ZeRO stage %d on %d %s\n",
              with_commas(parameters).c_str(), static_cast<long long>(options.model.layers),
              static_cast<long long>(options.model.hidden), config.zero.stage,
              engine.communicator().world_size(), engine.communicator().world_size() == 1 ? "rank" : "ranks");
  std::printf("data: %s, %s bytes", corpus.description.c_str(),
              with_commas(static_cast<int64_t>(corpus.bytes.size())).c_str());
  if (options.sequential) {
    std::printf(", read from front to back\n");
  } else {
    std::printf(", %s samples, %s steps an epoch\n", with_commas(sampler.windows()).c_str(),
                with_commas(sampler.steps_per_epoch()).c_str());
    if (sampler.dropped_per_epoch() > 0) {
      std::printf("data: an epoch's last batch is incomplete (%lld of %lld samples) and is dropped\n",
                  static_cast<long long>(sampler.dropped_per_epoch()),
                  static_cast<long long>(sampler.train_batch_size()));
    }
  }
  std::printf("%s", memory_table(engine.bytes_by_category(), engine.formula_bytes()).c_str());
  std::fflush(stdout);
}

// One optimizer step. Every rank gets the same record.
StepRecord train_step(int64_t step, Gpt2& model, Engine& engine, const Corpus& corpus,
                      const Sampler& sampler) {
  Communicator& communicator = engine.communicator();
  const int64_t micro_steps = engine.config().batch.gradient_accumulation_steps;
  StepRecord record{.step = step, .lr = engine.get_lr().front(), .loss_scale = engine.loss_scale()};
  double loss_sum = 0.0;
  for (int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
    const std::vector<int64_t> offsets = sampler.offsets(step, micro_step, communicator.rank());
    at::Tensor loss =
        model->loss(make_batch(corpus, offsets, model->options().positions).to(engine.device()));
    engine.backward(loss);
    engine.step();
    loss_sum += loss.item<double>();
  }
  at::Tensor total = at::full({1}, loss_sum, at::kDouble);
  communicator.all_reduce(total, "loss")->wait();
  record.loss = total.item<double>() / static_cast<double>(micro_steps * communicator.world_size());
  record.grad_norm = engine.get_global_grad_norm();
  record.skipped = engine.skipped_steps();
  return record;
}

void train(const ProgramOptions& options, Gpt2& model, Engine& engine, const Corpus& corpus,
           const Sampler& sampler) {
  const bool talks = engine.communicator().rank() == 0;
  const int64_t first = engine.global_steps();
  std::optional<CsvLog> csv;
  std::optional<Progress> progress;
  if (talks && !options.csv.empty()) csv.emplace(options.csv, first);
  if (talks) {
    progress.emplace(first, options.steps, sampler.train_batch_size() * options.model.positions,
                     engine.config().steps_per_print);
  }
  engine.train();
  for (int64_t step = first; step < options.steps; ++step) {
    const StepRecord record = train_step(step, model, engine, corpus, sampler);
    if (csv) csv->write(record);
    if (progress) progress->step_done(record);
    const bool ends = engine.should_stop() || step + 1 == options.steps;
    const bool due = options.save_every > 0 && (step + 1) % options.save_every == 0;
    if (!options.save_dir.empty() && (due || ends)) {
      engine.save_checkpoint(options.save_dir, "", {.keep_last = options.keep_last});
    }
    if (ends) break;
  }
  if (progress) progress->finish();
  await_checkpoint(engine);
  if (!talks) return;
  const int64_t steps = engine.global_steps() - first;
  if (engine.communicator().world_size() == 1 || steps <= 0) return;
  const int64_t micro_steps = steps * engine.config().batch.gradient_accumulation_steps;
  std::printf("%s", traffic_report(engine, count_parameters(model), micro_steps).c_str());
}

// At stage 3 the model may be too large for any rank: then initialize() creates its values, bucket by bucket.
Gpt2 build_model(const ProgramOptions& options, const Config& config) {
  std::optional<DeferredInit> deferred;
  if (config.zero.stage == 3 && options.init.empty()) deferred.emplace();
  return Gpt2(options.model);
}

// Divides the cores among ranks, unless the launcher or the user has set OMP_NUM_THREADS.
void share_cores(int world_size) {
  if (std::getenv("OMP_NUM_THREADS")) return;
  at::set_num_threads(std::max(1, count_usable_cores() / world_size));
}

int run(int argc, char** argv) {
  const std::optional<ProgramOptions> options = parse_options(argc, argv);
  if (!options) return 0;
  const Environment environment = Environment::read();
  const Config config = load_config(options->deepspeed.config_file(),
                                    {.world_size = environment.world_size,
                                     .arguments = options->hyperparameters.arguments(options->steps),
                                     .hidden_size = options->model.hidden});
  const Corpus corpus = open_corpus(*options);
  const Sampler sampler = make_sampler(*options, corpus, config, environment.world_size);
  share_cores(environment.world_size);

  if (options->save_on_sigterm) survive_termination();
  Gpt2 model = build_model(*options, config);
  if (!options->init.empty()) load_weights(*model, options->init);
  InitializeOptions initialize_options;
  initialize_options.communicator = connect(environment);
  initialize_options.output_folder = options->output_folder();
  Engine engine = initialize(*model, config, initialize_options);
  const bool talks = environment.rank == 0;
  RestoredCheckpoint restored;
  if (!options->resume.empty()) restored = engine.load_checkpoint(options->resume);
  if (talks) introduce(*options, corpus, sampler, engine, model);
  if (talks && !restored.path.empty()) std::printf("resumed from %s\n", restored.path.c_str());

  train(*options, model, engine, corpus, sampler);
  if (engine.should_stop()) {
    if (talks)
      std::printf("ended by SIGTERM behind step %lld, which is saved\n",
                  static_cast<long long>(engine.global_steps()));
    return 0;
  }
  if (!options->save.empty()) {
    GatheredParameters whole(engine, model->parameters());  // all ranks take part, rank 0 writes
    if (talks) save_weights(*model, options->save);
  }

  if (options->generate > 0) {
    engine.eval();
    const Tokenizer tokenizer = Tokenizer::bytes();
    const std::vector<int32_t> prompt = tokenizer.encode(options->prompt);
    const std::vector<int32_t> tokens =
        generate(model, prompt, tokenizer.size(), {.count = options->generate, .seed = options->model.seed});
    if (talks) std::printf("text: %s\n", printable(options->prompt + tokenizer.decode(tokens)).c_str());
  }
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  return zerorun::run_program([&] { return zerorun::run(argc, argv); });
}
