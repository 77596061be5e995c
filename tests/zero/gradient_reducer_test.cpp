// Tests the reduction of gradients of tiny graphs. The gradients are small whole numbers, so plain sums are
// exact in every dtype and serve as expected values.
#include "zero/gradient_reducer.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <exception>
#include <optional>

#include "device/dtypes.h"
#include "tests/zero/rank_state.h"
#include "zero/residency.h"

namespace zerorun::testing {
namespace {

// There are three buckets, filled from the last parameter on: {p5, p4}, {p3, p2, p1} and {p0}.
constexpr int kParameters = 6;
constexpr int64_t kBucketNumel = 96;
std::vector<ParameterSpec> specs_of(int stage) {
  std::vector<ParameterSpec> specs = {{{5}}, {{3, 7}}, {{0}}, {{40}}, {{1}}, {{33}}};
  for (ParameterSpec& spec : specs) spec.partitioned = stage == 3;
  return specs;
}

// One rank of a run at `stage`, without an optimizer.
struct Run {
  Run(int stage, Communicator& given, const ReducerOptions& options)
      : communicator(given),
        policy(policy_of(stage)),
        specs(specs_of(stage)),
        state(specs, given, {.marked = stage > 0, .shared = true}, kBucketNumel) {
    if (stage > 0) {
      residency.emplace(state.buckets, state.store, given, GatherLimits{}, [] { return true; });
    }
    reducer.emplace(state.buckets, state.store, given, options);
  }
  ~Run() {
    if (std::uncaught_exceptions() == 0) communicator.barrier("the end")->wait();
  }

  void backward(bool boundary, const at::Tensor& loss) {
    reducer->start_backward(boundary);
    loss.backward();
    reducer->finish_backward();
  }

  Communicator& communicator;
  StagePolicy policy;
  std::vector<ParameterSpec> specs;
  RankState state;
  std::optional<Residency> residency;
  std::optional<GradientReducer> reducer;
};

// A gradient of whole numbers from -4 to 4.
at::Tensor gradient_of(const Run& run, int parameter, int rank, int step) {
  const at::Tensor numbers = numbered(run.specs[parameter].sizes, 3 * rank + 5 * step + 7 * parameter);
  return at::remainder(numbers * 7, 9) - 4;
}

bool is_used(int parameter, int rank, int step) {
  return (parameter + rank + 2 * step) % 4 != 0;
}

// A loss whose gradients are gradient_of(). It reads all parameters, also those without a gradient, since
// ranks that share no memory must all start the same gathers.
at::Tensor loss_of(const Run& run, int step) {
  const int rank = run.communicator.rank();
  at::Tensor loss = at::zeros({});
  for (int index = 0; index < kParameters; ++index) {
    const at::Tensor part = (run.state.leaves[index] * gradient_of(run, index, rank, step)).sum();
    if (is_used(index, rank, step)) loss = loss + part;
  }
  return loss;
}

// A loss whose gradient is `values` for one parameter, and none for the other parameters.
at::Tensor loss_with(const Run& run, int parameter, const at::Tensor& values) {
  return (run.state.leaves[parameter] * values).sum();
}

// `expected` has the gradient sums of the whole bucket. Expects gradient() to be this rank's part of them.
void expect_gradient(const Run& run, int bucket, const at::Tensor& expected, const std::string& what) {
  const at::Tensor& found = run.reducer->gradient(bucket);
  const at::Tensor mine = run.policy.replicate_update
                              ? expected
                              : run.state.store.slice_of(bucket, expected, run.communicator.rank());
  expect_equal(found, mine.to(found.scalar_type()), what + ", " + run.state.buckets.label(bucket));
}

struct Part {
  int rank;
  int step;
};

// Expects gradient() to be `factor` times the sum of the gradients of all `parts`. A part is the loss of one
// rank in one step.
void expect_sums(const Run& run, const std::vector<Part>& parts, const std::string& what, double factor = 1) {
  const Buckets& buckets = run.state.buckets;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    const at::Tensor expected = at::zeros({run.state.store.layout(bucket).numel});
    for (const int index : run.state.store.layout(bucket).parameters) {
      for (const auto& [rank, step] : parts) {
        if (!is_used(index, rank, step)) continue;
        buckets.piece(index, expected).add_(gradient_of(run, index, rank, step).flatten(), factor);
      }
    }
    expect_gradient(run, bucket, expected, what);
  }
}

std::vector<Part> parts_of(const Run& run, const std::vector<int>& steps) {
  std::vector<Part> parts;
  for (int rank = 0; rank < run.communicator.world_size(); ++rank) {
    for (const int step : steps) parts.push_back({rank, step});
  }
  return parts;
}

std::string text(int stage, const ReducerOptions& options) {
  return c10::str("stage ", stage, ", travels in ", name_of(options.communication), ", added up in ",
                  name_of(options.accumulation), options.accumulates ? ", accumulates" : "",
                  options.overlap ? ", overlaps" : "");
}

// Runs `body` for every combination of stage, dtypes, accumulation, overlap, ranks and shared memory.
template <typename Body>
void check_ways(const Body& body, float factor = 1) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Dtype communication : {Dtype::fp32, Dtype::bf16}) {
      for (const Dtype accumulation : {Dtype::fp32, Dtype::bf16}) {
        for (const bool accumulates : {false, true}) {
          for (const bool overlap : {false, true}) {
            const ReducerOptions options{.policy = policy_of(stage),
                                         .overlap = overlap,
                                         .communication = communication,
                                         .accumulation = accumulation,
                                         .accumulates = accumulates,
                                         .factor = factor};
            INFO(text(stage, options));
            for (int ranks = 1; ranks <= 3; ++ranks) {
              check_both_ways(ranks, [&](Communicator& communicator) {
                Run run(stage, communicator, options);
                body(run, options);
              });
            }
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("gradients: sums over ranks and micro-steps; windows start from zero; unused parameters get zero") {
  check_ways([](Run& run, const ReducerOptions& options) {
    int step = 0;
    for (int window = 0; window < 3; ++window) {
      std::vector<int> steps;
      for (int micro = options.accumulates ? 3 : 1; micro > 0; --micro) {
        steps.push_back(step);
        run.backward(micro == 1, loss_of(run, step++));
      }
      run.reducer->finish_window();
      for (const at::Tensor& leaf : run.state.leaves) expect(!leaf.grad().defined(), "grad() is kept");
      expect_sums(run, parts_of(run, steps), "window " + std::to_string(window));
      run.reducer->start_window();
    }
    // Every rank uses only p3. Its gradient is its values minus 4000: 0 to 39.
    run.backward(true, (run.state.leaves[3] - 4000).square().sum() / 2);
    run.reducer->finish_window();
    const Buckets& buckets = run.state.buckets;
    for (int bucket = 0; bucket < run.state.store.count(); ++bucket) {
      const at::Tensor expected = at::zeros({run.state.store.layout(bucket).numel});
      if (bucket == buckets.bucket_of(3)) {
        buckets.piece(3, expected).copy_(numbered({40}, 0) * run.communicator.world_size());
      }
      expect_gradient(run, bucket, expected, "one parameter only");
    }
  });
}

TEST_CASE("gradients: gradients that arrive after their bucket's reduction has started are added") {
  check_ways([](Run& run, const ReducerOptions&) {
    for (int window = 0; window < 3; ++window) {
      const std::string where = "window " + std::to_string(window);
      // Runs two backwards where the plan expects one. In the second window only rank 0 runs the second
      // backward.
      const int step = 10 * window;
      std::vector<Part> parts = parts_of(run, {step});
      run.reducer->start_backward(true);
      loss_of(run, step).backward();
      if (window == 1) {
        parts.push_back({0, step + 1});
      } else {
        for (const Part& part : parts_of(run, {step + 1})) parts.push_back(part);
      }
      const at::Tensor second = loss_of(run, step + 1);
      if (window != 1 || run.communicator.rank() == 0) second.backward();
      run.reducer->finish_backward();
      run.reducer->finish_window();
      expect_sums(run, parts, where);
      run.reducer->start_window();
    }
    // Runs two backwards before one step, and both are accumulation boundaries.
    run.backward(true, loss_of(run, 50));
    run.backward(true, loss_of(run, 51));
    run.reducer->finish_window();
    expect_sums(run, parts_of(run, {50, 51}), "two boundaries");
    run.reducer->start_window();
  });
}

TEST_CASE("gradients: the end of a window reduces the rest if its last backward was no boundary") {
  check_ways([](Run& run, const ReducerOptions&) {
    for (int window = 0; window < 2; ++window) {
      run.backward(false, loss_of(run, 2 * window));
      run.backward(false, loss_of(run, 2 * window + 1));
      run.reducer->finish_window();
      expect_sums(run, parts_of(run, {2 * window, 2 * window + 1}), "window " + std::to_string(window));
      run.reducer->start_window();
    }
  });
}

TEST_CASE("gradients: every gradient is multiplied by the factor once, late gradients included") {
  auto body = [](Run& run, const ReducerOptions&) {
    for (int window = 0; window < 2; ++window) {
      run.backward(false, loss_of(run, 0));
      run.reducer->start_backward(true);
      loss_of(run, 1).backward();
      loss_of(run, 2).backward();
      run.reducer->finish_backward();
      run.reducer->finish_window();
      expect_sums(run, parts_of(run, {0, 1, 2}), "halves", 0.5);
      run.reducer->start_window();
    }
  };
  check_ways(body, 0.5);
}

TEST_CASE("gradients: sparse gradients, and gradients with other strides") {
  check_ways([](Run& run, const ReducerOptions&) {
    const int bucket = run.state.buckets.bucket_of(1);
    const int ranks = run.communicator.world_size();
    auto expect_p1 = [&](const at::Tensor& values, const std::string& what) {
      run.reducer->finish_window();
      const at::Tensor expected = at::zeros({run.state.store.layout(bucket).numel});
      run.state.buckets.piece(1, expected).copy_((values * ranks).flatten());
      expect_gradient(run, bucket, expected, what);
      run.reducer->start_window();
    };
    // The embedding uses its last row twice and its middle row never.
    const at::Tensor rows = at::tensor(std::vector<int64_t>{2, 0, 2});
    run.backward(true, torch::embedding(run.state.leaves[1], rows, -1, false, /*sparse=*/true).sum());
    expect_p1(at::tensor({1.0F, 0.0F, 2.0F}).view({3, 1}).expand({3, 7}), "sparse");
    const at::Tensor weights = numbered({7, 3}, 1);
    run.backward(true, (run.state.leaves[1].t() * weights).sum());
    expect_p1(weights.t(), "transposed");
    run.backward(true, run.state.leaves[1].sum());
    expect_p1(at::ones({3, 7}), "expanded from one element");
  });
}

TEST_CASE("gradients: the dtypes of communication and accumulation decide where sums are rounded") {
  struct Expected {
    int stage;
    Dtype accumulation;
    bool accumulates;
    Dtype dtype;
    double of_two;    // the sum over 2 ranks, each with gradients 1 and 2^-8
    double of_three;  // the same with gradients 1, 2^-8 and 2^-8
  };
  // In bf16, 1 + 2^-8 and 2 + 2^-7 lie half-way between two numbers and are rounded to the even one. 1 + 2^-7
  // and 2 + 2^-6 are exact. Stages 0 and 1 add micro-batches and then send the sum. Stages 2 and 3 send each
  // micro-batch and add afterwards.
  const double half = 2 + 1.0 / 128;
  const double full = 2 + 1.0 / 64;
  for (const Expected& row : std::vector<Expected>{{0, Dtype::fp32, true, Dtype::fp32, 2, full},
                                                   {1, Dtype::fp32, true, Dtype::fp32, 2, full},
                                                   {0, Dtype::fp32, false, Dtype::bf16, 2, full},
                                                   {1, Dtype::bf16, true, Dtype::bf16, 2, 2},
                                                   {2, Dtype::fp32, true, Dtype::fp32, half, full},
                                                   {3, Dtype::fp32, true, Dtype::fp32, half, full},
                                                   {2, Dtype::bf16, true, Dtype::bf16, 2, 2},
                                                   {3, Dtype::bf16, false, Dtype::bf16, 2, 2}}) {
    const ReducerOptions options{.policy = policy_of(row.stage),
                                 .communication = Dtype::bf16,
                                 .accumulation = row.accumulation,
                                 .accumulates = row.accumulates};
    INFO(text(row.stage, options));
    check_both_ways(2, [&](Communicator& communicator) {
      Run run(row.stage, communicator, options);
      expect(run.reducer->gradient_dtype() == row.dtype, "gradient_dtype()");
      const int bucket = run.state.buckets.bucket_of(0);
      const at::Tensor& found = run.reducer->gradient(bucket);
      expect(found.scalar_type() == scalar_type(row.dtype), "type of the sums");
      expect(run.state.store.at(bucket, kGradient).memory.is_alias_of(found), "sums outside of the store");
      for (const bool three : {false, true}) {
        const at::Tensor small = at::full({5}, 1.0 / 256);
        run.backward(false, loss_with(run, 0, at::ones({5})));
        if (three) run.backward(false, loss_with(run, 0, small));
        run.backward(true, loss_with(run, 0, small));
        run.reducer->finish_window();
        // p0 is at the start of its bucket, wholly in rank 0's slice.
        if (communicator.rank() == 0) {
          const at::Tensor expected = at::full({5}, three ? row.of_three : row.of_two);
          expect_equal(found.narrow(0, 0, 5), expected.to(found.scalar_type()), three ? "three" : "two");
        }
        run.reducer->start_window();
      }
    });
  }
}

}  // namespace zerorun::testing
