// Tests that all ranks start their collectives in one order, gathers and reductions together, whatever
// parameters each rank gives a gradient, and that no gradient is lost. A program is a random training in
// which all ranks use the same partitioned parameters in the same order, as they must at stage 3. Everything
// else differs between ranks and steps: which of these uses give a gradient, and where small parameters,
// which stay in memory, are used. The updated parameters are compared with plain LibTorch, which adds the
// gradients of all ranks.
#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "comm/notices.h"
#include "engine/engine.h"
#include "tests/engine/net.h"
#include "tests/support/forward_collective.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

constexpr int kNone = -1;
constexpr int kMostRanks = 3;
constexpr double kRate = 0.1;

// Forwards the collectives to another communicator and records them.
class OrderRecorder : public Communicator {
 public:
  OrderRecorder(std::shared_ptr<Communicator> inner, std::vector<std::string>& record)
      : Communicator(inner->rank(), inner->world_size(), inner->timeout()),
        inner_(std::move(inner)),
        record_(record) {}

  std::unique_ptr<Notices> open_notices() override { return inner_->open_notices(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    record_.push_back(std::string(name_of(call.kind)) + " of " + call.label);
    return forward(*inner_, call);
  }

  std::shared_ptr<Communicator> inner_;
  std::vector<std::string>& record_;
};

// What one rank does at one use of a partitioned parameter.
struct Choice {
  bool detached = false;  // the use gives no gradient
  int small = kNone;      // a small parameter that is added afterwards
};

struct Use {
  int weight = 0;
  bool matmul = false;
  int nested = kNone;  // a partitioned parameter that gets a gradient from a backward inside of backward
  std::array<Choice, kMostRanks> ranks;
};

struct Micro {
  std::vector<Use> uses;
  std::array<int, kMostRanks> last{};  // the small parameter that is added last
  bool plain = false;                  // loss.backward() instead of engine.backward()
  bool twice = false;                  // two backwards over the graph
  bool evaluates = false;              // an evaluation comes first
  bool no_sync = false;
};

struct RandomTraining {
  int ranks = 2;
  int stage = 3;
  bool overlap = true;
  int64_t bucket_numel = 64;
  int64_t max_live = 0;
  int64_t prefetch = 0;
  int weights = 1;
  int smalls = 1;
  std::vector<std::vector<Micro>> steps;

  std::string config() const {
    return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
           std::to_string(steps.front().size()) +
           R"(, "gradient_clipping": 0, "optimizer": {"type": "SGD", "params": {"lr": )" +
           std::to_string(kRate) + R"(}}, "zero_optimization": {"stage": )" + std::to_string(stage) +
           R"(, "overlap_comm": )" + (overlap ? "true" : "false") +
           R"(, "stage3_param_persistence_threshold": 20, "stage3_max_live_parameters": )" +
           std::to_string(max_live) + R"(, "stage3_prefetch_bucket_size": )" + std::to_string(prefetch) +
           "}}";
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : generator_(seed) {}

  RandomTraining training() {
    RandomTraining made;
    made.ranks = 2 + below(kMostRanks - 1);
    made.stage = once_in(5) ? below(3) : 3;
    made.overlap = !once_in(4);
    made.bucket_numel = 64 * (1 + below(3));
    made.max_live = 64 * below(8);
    made.prefetch = 64 * below(4);
    made.weights = 1 + below(6);
    made.smalls = 1 + below(5);
    const int micros = 1 + below(2);
    for (int step = 0; step < 6; ++step) {
      std::vector<Micro> next;
      if (step > 0 && !once_in(4)) {
        next = made.steps[below(step)];  // the same uses; each rank's choices may change
      } else {
        for (int micro = 0; micro < micros; ++micro) next.push_back(micro_of(made));
      }
      for (Micro& micro : next) {
        if (!once_in(3)) choose(micro, made);
      }
      made.steps.push_back(std::move(next));
    }
    return made;
  }

 private:
  int below(int bound) { return static_cast<int>(generator_() % bound); }
  bool once_in(int times) { return below(times) == 0; }

  Micro micro_of(const RandomTraining& made) {
    Micro micro;
    const int uses = 1 + below(6);
    for (int use = 0; use < uses; ++use) {
      micro.uses.push_back({.weight = below(made.weights),
                            .matmul = once_in(2),
                            .nested = once_in(12) ? below(made.weights) : kNone,
                            .ranks = {}});
    }
    micro.plain = once_in(2);
    micro.twice = once_in(8);
    micro.evaluates = once_in(8);
    micro.no_sync = once_in(8);
    choose(micro, made);
    return micro;
  }

  void choose(Micro& micro, const RandomTraining& made) {
    for (int rank = 0; rank < made.ranks; ++rank) {
      for (Use& use : micro.uses) {
        use.ranks[rank] = {.detached = once_in(4), .small = once_in(2) ? below(made.smalls) : kNone};
      }
      micro.last[rank] = below(made.smalls);
    }
  }

  std::mt19937_64 generator_;
};

struct Weights : torch::nn::Module {
  explicit Weights(const RandomTraining& training) {
    for (int i = 0; i < training.weights; ++i) {
      weights.push_back(register_parameter(c10::str("w", i), torch::zeros({8, 8})));
    }
    for (int i = 0; i < training.smalls; ++i) {
      smalls.push_back(register_parameter(c10::str("s", i), torch::zeros({8})));
    }
    fill(*this, 7);
  }

  // `factor` multiplies the losses of nested backwards.
  at::Tensor loss(const Micro& micro, int rank, uint64_t seed, double factor) const {
    at::Tensor h = values({8, 8}, 10 * seed + rank).requires_grad_(at::GradMode::is_enabled());
    for (const Use& use : micro.uses) {
      const Choice& choice = use.ranks[rank];
      const at::Tensor weight = choice.detached ? weights[use.weight].detach() : weights[use.weight];
      h = torch::tanh(use.matmul ? h.matmul(weight) : h * weight);
      if (choice.small != kNone) h = h + smalls[choice.small];
      if (use.nested == kNone || !h.requires_grad()) continue;
      h.register_hook([nested = weights[use.nested], factor](const at::Tensor&) {
        const at::AutoGradMode grad_mode(true);
        ((nested * nested).sum() * factor).backward();
      });
    }
    return (h + smalls[micro.last[rank]]).square().mean();
  }

  std::vector<at::Tensor> weights, smalls;
};

// The parameters after the training in plain LibTorch.
std::vector<at::Tensor> train_plain(const RandomTraining& training) {
  Weights model(training);
  const auto micros = static_cast<double>(training.steps.front().size());
  uint64_t seed = 0;
  for (const std::vector<Micro>& step : training.steps) {
    for (const Micro& micro : step) {
      ++seed;
      for (int rank = 0; rank < training.ranks; ++rank) {
        // engine.backward() divides by the number of micro-steps in the seed, which nested backwards lack.
        const at::Tensor loss = model.loss(micro, rank, seed, micro.plain ? 1 / micros : 1) / micros;
        if (micro.twice) loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      }
    }
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters()) {
      if (!parameter.grad().defined()) continue;
      parameter.sub_(parameter.grad() / training.ranks, kRate);
      parameter.mutable_grad().reset();
    }
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model.parameters()) parameters.push_back(parameter.detach());
  return parameters;
}

void run_backwards(Engine& engine, const Micro& micro, const at::Tensor& loss) {
  for (int left = micro.twice ? 1 : 0; left >= 0; --left) {
    if (micro.plain) {
      loss.backward({}, /*retain_graph=*/left > 0);
    } else {
      engine.backward(loss, /*retain_graph=*/left > 0);
    }
  }
}

void run_micro(Engine& engine, Weights& model, const Micro& micro, uint64_t seed) {
  const int rank = engine.communicator().rank();
  if (micro.evaluates) {
    const torch::NoGradGuard no_grad;
    engine.eval();
    (void)model.loss(micro, rank, seed, 1);
    engine.train();
  }
  const at::Tensor loss = model.loss(micro, rank, seed, 1);
  if (micro.no_sync) {
    const auto scope = engine.no_sync();
    run_backwards(engine, micro, loss);
  } else {
    run_backwards(engine, micro, loss);
  }
  engine.step();
}

// Returns each rank's collectives. Throws if the parameters differ from `expected` by more than rounding.
std::vector<std::vector<std::string>> train_on_ranks(const RandomTraining& training,
                                                     const std::vector<at::Tensor>& expected) {
  std::vector<std::vector<std::string>> records(training.ranks);
  run_ranks(
      training.ranks,
      [&](const std::shared_ptr<Communicator>& communicator) {
        Weights model(training);
        InitializeOptions options;
        options.bucket_numel = training.bucket_numel;
        Engine engine = make_engine(
            model, training.config(),
            std::make_shared<OrderRecorder>(communicator, records[communicator->rank()]), options);
        uint64_t seed = 0;
        for (const std::vector<Micro>& step : training.steps) {
          for (const Micro& micro : step) run_micro(engine, model, micro, ++seed);
        }
        engine.synchronize();
        check_close(model, expected);
      },
      std::chrono::seconds(20), /*shares_memory=*/false);
  return records;
}

// Returns where the ranks' collectives differ first, or an empty string.
std::string difference(const std::vector<std::vector<std::string>>& records) {
  const std::vector<std::string>& first = records.front();
  for (size_t rank = 1; rank < records.size(); ++rank) {
    const std::vector<std::string>& other = records[rank];
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string mine = i < first.size() ? first[i] : "nothing";
      const std::string theirs = i < other.size() ? other[i] : "nothing";
      if (mine == theirs) continue;
      return "collective " + std::to_string(i) + ": " + mine + " on rank 0, " + theirs + " on rank " +
             std::to_string(rank);
    }
  }
  return {};
}

void check_programs(uint64_t from, uint64_t to) {
  for (uint64_t seed = from; seed < to; ++seed) {
    const RandomTraining training = Draw(seed).training();
    CAPTURE(seed, training.stage, training.ranks);
    std::vector<std::vector<std::string>> records;
    REQUIRE_NOTHROW(records = train_on_ranks(training, train_plain(training)));
    REQUIRE(difference(records) == "");
  }
}

}  // namespace

TEST_CASE("All ranks start gathers and reductions in one order, whatever parameters they use") {
  check_programs(0, 200);
}

TEST_CASE("All ranks start gathers and reductions in one order: a thousand programs", "[.thousand]") {
  check_programs(0, 1000);
}

}  // namespace zerorun::testing
