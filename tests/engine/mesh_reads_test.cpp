// Tests how much a rank reads of a checkpoint that another mesh has written, and the memory that this takes.
#include <catch2/catch.hpp>
#include <fstream>
#include <mutex>
#include <set>

#include "checkpoint/checksums.h"
#include "checkpoint/saved_state.h"
#include "engine/engine_state.h"
#include "engine/parameter_states.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/counting_file_system.h"
#include "tests/engine/engine_internals.h"
#include "tests/engine/parameter_model.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using checkpoint::kChecksumBlock;
using checkpoint::SavedParameter;
namespace fs = std::filesystem;

struct LargeNetImpl : torch::nn::Module {
  explicit LargeNetImpl(int64_t rows, int64_t columns) {
    torch::manual_seed(3);
    rows_cut = register_module("rows_cut", torch::nn::Linear(torch::nn::LinearOptions(columns, rows)));
    columns_cut = register_module("columns_cut",
                                  torch::nn::Linear(torch::nn::LinearOptions(columns, rows).bias(false)));
  }
  torch::nn::Linear rows_cut = nullptr, columns_cut = nullptr;
};
TORCH_MODULE(LargeNet);

const TensorPlan kPlan = {{"rows_cut", TensorStyle::colwise}, {"columns_cut", TensorStyle::rowwise}};
// The other way round.
const TensorPlan kOtherPlan = {{"rows_cut", TensorStyle::rowwise}, {"columns_cut", TensorStyle::colwise}};

Engine engine_of(LargeNet& model, const TensorPlan& plan, const std::string& config, const MeshSizes& mesh,
                 std::shared_ptr<Communicator> communicator) {
  InitializeOptions options;
  options.pipeline = Pipeline{
      .layers = {layer_of("first", *model->rows_cut),
                 {"second", {model->columns_cut->weight}, [](const Tensors& inputs) { return inputs; }}},
      .loss = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); },
      .cut = PipelineCut{.by = PipelineCut::By::number}};
  return decoder_engine(*model, config, mesh, std::move(communicator), plan, options);
}

void save(const fs::path& folder, const MeshSizes& mesh, const std::string& config, int64_t rows,
          int64_t columns) {
  run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    LargeNet model(rows, columns);
    Engine engine = engine_of(model, kPlan, config, mesh, std::move(communicator));
    engine.save_checkpoint(folder, "", {.asynchronous = false});
  });
}

// The blocks that a rank must read: those that have elements of its slices.
class Formula {
 public:
  Formula(EngineState& state, const checkpoint::SavedState& saved) : saved_(&saved) {
    for (int bucket = 0; bucket < state.store.count(); ++bucket) {
      for (const int index : state.store.layout(bucket).parameters) {
        state.store.for_each_piece_of(0, index, [&](const StatePiece& piece) {
          if (piece.state->kind == StateKind::gradient) return;
          const NamedParameter& parameter = state.buckets.parameters()[index];
          add(saved_parameter(parameter), saved_part(state, index, piece.state->kind), parameter.name, piece);
        });
      }
    }
    for (const auto& [file, block] : blocks_)
      bytes_ += std::min(kChecksumBlock, saved.manifest().files.at(file).bytes - block * kChecksumBlock);
  }

  int64_t bytes() const { return bytes_; }

 private:
  void add(const SavedParameter& own, int part, const std::string& name, const StatePiece& piece) {
    std::string source = piece.state->name;
    if (piece.state->kind != StateKind::moment)
      source = saved_->dtype_of(name, "master").empty() ? "value" : "master";
    std::vector<char> wanted(static_cast<size_t>(checkpoint::numel_of(own)));
    const std::vector<int64_t> numbers = numbers_of(own, part);
    for (int64_t element = 0; element < piece.values.numel(); ++element)
      wanted[numbers[piece.begin + element]] = 1;
    for (const auto& [file, facts] : saved_->manifest().files) {
      for (const checkpoint::StateRange& range : facts.ranges) {
        if (range.parameter != name || range.state != source) continue;
        auto& there = there_[{name, range.part}];
        if (there.empty()) there = numbers_of(saved_->manifest().parameters.at(name), range.part);
        int64_t last = -1;
        for (int64_t element = 0; element < range.numel; ++element) {
          const int64_t block =
              (range.offset + element * checkpoint::element_bytes(range.dtype)) / kChecksumBlock;
          if (block == last || wanted[there[range.begin + element]] == 0) continue;
          blocks_.emplace(file, block);
          last = block;
        }
      }
    }
  }

  // The numbers of a part's elements in the whole parameter, in memory order.
  static std::vector<int64_t> numbers_of(const SavedParameter& whole, int part) {
    at::Tensor numbers = at::arange(checkpoint::numel_of(whole)).reshape(whole.shape);
    if (whole.split && part != checkpoint::kWhole) {
      Tensors pieces;
      for (const auto& [begin, numel] : whole.split->parts.at(static_cast<size_t>(part)))
        pieces.push_back(numbers.narrow(whole.split->dim, begin, numel));
      numbers = at::cat(pieces, whole.split->dim);
    }
    numbers = numbers.contiguous();
    const auto* data = numbers.const_data_ptr<int64_t>();
    return {data, data + numbers.numel()};
  }

  const checkpoint::SavedState* saved_;
  std::map<std::pair<std::string, int>, std::vector<int64_t>> there_;
  std::set<std::pair<std::string, int64_t>> blocks_;
  int64_t bytes_ = 0;
};

// The value, in bytes, of the line with this key in /proc/self/status.
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  throw std::runtime_error("no " + key + " in /proc/self/status");
}

// Lets the kernel count the process's largest memory anew. False if it cannot.
bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return (file << 5).flush().good();
}

}  // namespace

TEST_CASE("A rank of any mesh reads the blocks that have its elements, each once") {
  struct Way {
    MeshSizes writer;
    MeshSizes reader;
    int stage;
    bool narrow;
    const TensorPlan* plan = &kPlan;
  };
  const Way ways[] = {{{1, 4, 1}, {1, 4, 1}, 1, false},
                      {{1, 4, 1}, {2, 1, 1}, 3, true},
                      {{1, 4, 1}, {1, 3, 1}, 1, false},
                      {{2, 1, 1}, {1, 2, 2}, 2, true},
                      {{2, 2, 1}, {2, 2, 1}, 3, false, &kOtherPlan},
                      {{1, 2, 2}, {3, 1, 1}, 1, false}};
  const std::string narrow = R"(, "bf16": {"enabled": true})";
  for (const auto& [writer, reader, stage, is_narrow, plan] : ways) {
    CAPTURE(describe(writer), describe(reader), stage, is_narrow);
    const TemporaryFolder folder;
    constexpr int64_t kRows = 720, kColumns = 1000;
    save(folder / "", writer, decoder_config(1, kAdam), kRows, kColumns);
    CHECK_NOTHROW(run_ranks(ranks_of(reader), [&, mesh = reader, stage = stage, is_narrow = is_narrow,
                                               plan = plan](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      LargeNet model(kRows, kColumns);
      Engine engine = engine_of(model, *plan, decoder_config(stage, kAdam, 1, is_narrow ? narrow : ""), mesh,
                                std::move(communicator));
      CountingFileSystem files;
      load_checkpoint(*state_of(engine), folder / "", "", {}, files);
      const checkpoint::SavedState saved(checkpoint::local_file_system(), folder / "global_step0");
      const Formula formula(*state_of(engine), saved);
      const std::string text =
          std::to_string(files.bytes()) + " bytes, the formula says " + std::to_string(formula.bytes());
      if (tries_all()) std::printf("rank %d: %s\n", rank, text.c_str());
      expect(formula.bytes() > 0, "nothing to read");
      expect(files.bytes() == formula.bytes(), text);
    }));
  }
}

TEST_CASE("Reading a parameter that is split otherwise takes little memory, however large it is") {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 4096, kColumns = 3072;  // two of 50 MB
  const std::string sgd = decoder_config(1, R"({"type": "SGD", "params": {"lr": 0.1}})");
  save(folder / "", {1, 2, 1}, sgd, kRows, kColumns);
  for (const auto& [mesh, plan] : {std::pair{MeshSizes{1, 1, 1}, kPlan}, {MeshSizes{1, 2, 1}, kOtherPlan}}) {
    CAPTURE(describe(mesh));
    int64_t most = 0;
    std::mutex mutex;
    CHECK_NOTHROW(
        run_ranks(ranks_of(mesh), [&, mesh = mesh, &plan = plan](std::shared_ptr<Communicator> communicator) {
          LargeNet model(kRows, kColumns);
          Engine engine = engine_of(model, plan, sgd, mesh, communicator);
          communicator->barrier("made")->wait();
          const int64_t before = status_bytes("VmRSS");
          const bool counts = forget_peak();
          communicator->barrier("counting")->wait();
          engine.load_checkpoint(folder / "");
          communicator->barrier("loaded")->wait();
          if (!counts) return;
          const std::lock_guard lock(mutex);
          most = std::max(most, status_bytes("VmHWM") - before);
        }));
    std::printf("%.1f MB for reading, on %d ranks of one process\n", static_cast<double>(most) / 1e6,
                ranks_of(mesh));
    CHECK(most <= ranks_of(mesh) * 24'000'000);
  }
}

}  // namespace zerorun::testing
