// Tests the gradient reducer's hooks together with the program's own hooks, and its reports of gradients that
// bypassed the reducer or are not finite.
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "device/step_facts.h"
#include "tests/zero/rank_state.h"
#include "zero/gradient_reducer.h"

namespace zerorun::testing {
namespace {

using Hook = torch::autograd::PostAccumulateGradHook;

// A hook of the program. It counts its calls and can remove the gradient.
struct ProgramHook : Hook {
  ProgramHook(int& calls, bool takes_away) : calls(&calls), takes_away(takes_away) {}
  void operator()(const at::Tensor& tensor) override {
    ++*calls;
    if (takes_away) tensor.mutable_grad().reset();
  }
  int* calls;
  bool takes_away;
};

Hook* add_hook(const at::Tensor& leaf, int& calls, bool takes_away = false) {
  auto hook = std::make_unique<ProgramHook>(calls, takes_away);
  Hook* added = hook.get();
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
  return added;
}

Hook* hook_of(const at::Tensor& leaf) {
  return torch::autograd::impl::post_acc_grad_hooks(leaf).get();
}

const std::vector<ParameterSpec> kSpecs = {{{4}}, {{2, 3}}, {{40}}};

// One rank's reducer over unpartitioned parameters.
struct Run {
  explicit Run(Communicator& communicator, const ReducerOptions& options = {.policy = policy_of(2)})
      : state(kSpecs, communicator, {}, 1000) {
    reducer.emplace(state.buckets, state.store, communicator, options);
  }

  // Gives every element of parameter number `index` the gradient `value`.
  void backward(int index, double value) {
    reducer->start_backward(true);
    (state.leaves[index] * value).sum().backward();
    reducer->finish_backward();
  }

  RankState state;
  std::optional<GradientReducer> reducer;
};

// Finishes the window and returns the gradient that the tally reports as not finite, if any.
std::optional<GradientReducer::NotFinite> find_not_finite(Run& run) {
  run.reducer->finish_window();
  Tally tally;
  std::memcpy(&tally, run.reducer->tally().const_data_ptr(), sizeof tally);
  const int64_t number = number_in(tally.gradient);
  if (number == 0) return {};
  return run.reducer->not_finite(number);
}

}  // namespace

TEST_CASE("hooks of the program run as before, and only they remain after the reducer is destroyed") {
  check_on_ranks(2, false, [](Communicator& communicator) {
    int calls = 0;
    RankState state(kSpecs, communicator, {}, 1000);
    Hook* added = add_hook(state.leaves[1], calls);
    {
      GradientReducer reducer(state.buckets, state.store, communicator, {.policy = policy_of(2)});
      expect(hook_of(state.leaves[1]) != added, "the reducer has no hook");
      reducer.start_backward(true);
      ((state.leaves[0].sum() + state.leaves[1].sum()) * 3).backward();
      reducer.finish_backward();
      reducer.finish_window();
      expect(calls == 1, "the program's hook did not run once");
      // Offsets in the bucket: p2 at 0, p1 at 64, p0 at 96.
      const at::Tensor expected = at::zeros({reducer.gradient(0).numel() * 2});
      expected.narrow(0, 64, 6).fill_(6);
      expected.narrow(0, 96, 4).fill_(6);
      expect_equal(reducer.gradient(0), state.store.slice_of(0, expected, communicator.rank()), "sums");
      expect(!state.leaves[1].grad().defined(), "grad() was kept");
    }
    expect(hook_of(state.leaves[0]) == nullptr, "a hook is left that was not there before");
    expect(hook_of(state.leaves[1]) == added, "the program's hook is not back");
    (state.leaves[0].sum() + state.leaves[1].sum()).backward();
    expect(calls == 2, "the program's hook does not run any more");
    expect_equal(state.leaves[0].grad(), at::ones({4}), "the gradient afterwards");
    expect_equal(state.leaves[1].grad(), at::ones({2, 3}), "of the parameter with a hook");
  });
}

TEST_CASE("hooks that are added after the reducer's hooks stay when the reducer is destroyed") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    int calls = 0;
    Run run(communicator);
    Hook* added = add_hook(run.state.leaves[0], calls);
    run.reducer.reset();
    expect(hook_of(run.state.leaves[0]) == added, "the program's hook has gone");
    run.state.leaves[0].sum().backward();
    expect(calls == 1, "the program's hook did not run");
    expect_equal(run.state.leaves[0].grad(), at::ones({4}), "the gradient");
  });
}

TEST_CASE("hooks that are set after the reducer's hooks run beside them") {
  for (int stage = 0; stage < 3; ++stage) {
    check_on_ranks(2, false, [&](Communicator& communicator) {
      Run run(communicator, {.policy = policy_of(stage)});
      int dropped = 0, calls = 0;
      add_hook(run.state.leaves[0], dropped);
      add_hook(run.state.leaves[0], calls);  // in the place of the one before, as without a reducer
      torch::autograd::impl::set_post_acc_grad_hooks(run.state.leaves[1], nullptr);
      run.reducer->start_backward(true);
      ((run.state.leaves[0].sum() + run.state.leaves[1].sum()) * 3).backward();
      run.reducer->finish_backward();
      run.reducer->finish_window();
      expect(dropped == 0 && calls == 1, "calls of the hooks");
      expect(!run.state.leaves[0].grad().defined(), "grad() was kept");
      at::Tensor expected = at::zeros({run.reducer->gradient(0).numel() * (stage < 1 ? 1 : 2)});
      expected.narrow(0, 64, 6).fill_(6);
      expected.narrow(0, 96, 4).fill_(6);
      const at::Tensor own =
          stage < 1 ? expected : run.state.store.slice_of(0, expected, communicator.rank());
      expect_equal(run.reducer->gradient(0), own, "sums");
    });
  }
}

TEST_CASE("a hook that is set in a backward counts in that backward") {
  // Before the gradient of the parameter is accumulated, or by the parameter's hook itself.
  for (const bool by_itself : {false, true}) {
    check_on_ranks(1, false, [&](Communicator& communicator) {
      Run run(communicator);
      const at::Tensor& leaf = run.state.leaves[0];
      int calls = 0;
      struct Replacing : Hook {
        Replacing(int& calls) : calls(&calls) {}
        void operator()(const at::Tensor& tensor) override { add_hook(tensor, *calls); }
        int* calls;
      };
      if (by_itself) {
        torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<Replacing>(calls));
      } else {
        leaf.register_hook([&](const at::Tensor&) {
          if (calls == 0) add_hook(leaf, calls);
        });
      }
      for (int i = 0; i < 2; ++i) run.backward(0, 3);
      run.reducer->finish_window();
      expect(calls == (by_itself ? 1 : 2), "the hook ran " + std::to_string(calls) + " times");
      expect_equal(run.state.buckets.view(0, run.reducer->gradient(0)), at::full({4}, 6.0), "sums");
    });
  }
}

TEST_CASE("the error about a hook that removes a gradient names the parameter") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    int calls = 0;
    RankState state(kSpecs, communicator, {}, 1000);
    add_hook(state.leaves[1], calls, true);
    GradientReducer reducer(state.buckets, state.store, communicator, {.policy = policy_of(2)});
    reducer.start_backward(true);
    expect_throws<UserError>([&] { state.leaves[1].sum().backward(); },
                             {"parameter p1", "was removed by a hook"}, "backward");
  });
}

TEST_CASE("gradients: gradients from before the reducer are not part of its sums") {
  check_on_ranks(2, false, [](Communicator& communicator) {
    RankState state(kSpecs, communicator, {}, 1000);
    (state.leaves[0] * 100).sum().backward();
    GradientReducer reducer(state.buckets, state.store, communicator, {.policy = policy_of(0)});
    expect(!state.leaves[0].grad().defined(), "grad() was kept");
    reducer.start_backward(true);
    state.leaves[0].sum().backward();
    reducer.finish_backward();
    reducer.finish_window();
    expect_equal(state.buckets.view(0, reducer.gradient(0)), at::full({4}, 2.0), "sums");
  });
}

TEST_CASE("gradients: the observer sees gradients outside of a pass, and may start a pass for them") {
  for (int stage = 0; stage < 3; ++stage) {
    check_on_ranks(1, false, [&](Communicator& communicator) {
      Run run(communicator, {.policy = policy_of(stage)});
      run.state.leaves[2].sum().backward();
      expect_equal(run.state.leaves[2].grad(), at::ones({40}),
                   "without an observer it stays with its parameter");
      run.state.leaves[2].mutable_grad().reset();
      int calls = 0;
      bool starts = false;
      run.reducer->set_observer([&] {
        ++calls;
        if (starts && calls == 2) run.reducer->start_backward(true, 0.5F);
      });
      run.backward(1, 1);
      expect(calls == 0, "a backward of the engine");
      run.state.leaves[0].sum().backward();
      expect(calls == 1 && run.state.leaves[0].grad().defined(), "an observer that starts none");
      run.state.leaves[0].mutable_grad().reset();
      run.reducer->discard_window();
      starts = true;
      (run.state.leaves[0].sum() + run.state.leaves[1].sum()).backward();
      expect(calls == 3, "each gradient of a backward that it has started");
      run.reducer->finish_backward();
      run.reducer->finish_window();
      expect_equal(run.state.buckets.view(0, run.reducer->gradient(0)), at::full({4}, 0.5), "scaled");
      expect_equal(run.state.buckets.view(1, run.reducer->gradient(0)), at::full({2, 3}, 0.5), "scaled too");
    });
  }
}

TEST_CASE("gradients: discarded gradients have no effect, also after an abandoned backward") {
  for (int stage = 0; stage < 3; ++stage) {
    check_on_ranks(2, false, [&](Communicator& communicator) {
      Run run(communicator, {.policy = policy_of(stage)});
      run.backward(1, std::nan(""));
      run.reducer->discard_window();
      run.reducer->start_backward(true);
      (run.state.leaves[2].sum() * 100).backward();
      run.reducer->abandon_backward();
      run.reducer->discard_window();
      run.backward(0, 3);
      expect(!find_not_finite(run), "a gradient that was discarded is not finite");
      at::Tensor expected = at::zeros({run.reducer->gradient(0).numel() * (stage < 1 ? 1 : 2)});
      run.state.buckets.piece(0, expected).fill_(6);
      const at::Tensor whole =
          stage < 1 ? expected : run.state.store.slice_of(0, expected, communicator.rank());
      expect_equal(run.reducer->gradient(0), whole, "sums");
    });
  }
}

TEST_CASE(
    "gradients: the tally has the first gradient that is not finite, and whether its dtype was too narrow") {
  struct Scenario {
    std::string name;
    std::vector<std::pair<int, double>> backwards;  // parameter, and value of its gradient
    Dtype communication;
    std::optional<int> parameter;
    bool too_large;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<Scenario> scenarios = {
      {"all finite", {{0, 1}, {1, 60000}, {2, -3}}, Dtype::fp16, {}, false},
      {"infinite", {{0, 1}, {1, kInfinity}, {2, 1}}, Dtype::fp32, 1, false},
      {"NaN", {{0, 1}, {2, std::nan("")}}, Dtype::fp32, 2, false},
      {"the first of two", {{2, -kInfinity}, {0, std::nan("")}}, Dtype::bf16, 2, false},
      {"too large for fp16", {{1, 1e5}, {0, kInfinity}}, Dtype::fp16, 1, true},
      {"the same in fp32", {{1, 1e5}, {0, kInfinity}}, Dtype::fp32, 0, false},
      {"infinite in fp16", {{2, 1}, {0, kInfinity}, {1, 1e5}}, Dtype::fp16, 0, false},
  };
  for (const Scenario& scenario : scenarios) {
    for (int stage = 0; stage < 3; ++stage) {
      INFO(scenario.name << ", stage " << stage);
      check_on_ranks(2, false, [&](Communicator& communicator) {
        Run run(communicator, {.policy = policy_of(stage),
                               .communication = scenario.communication,
                               .accumulation = Dtype::fp32,
                               .accumulates = false});
        // Only rank 1 has gradients that are not finite, so rank 0's tally must report none.
        const bool bad_rank = communicator.rank() == 1;
        run.reducer->start_backward(true);
        for (const auto& [parameter, value] : scenario.backwards) {
          (run.state.leaves[parameter] * (bad_rank ? value : 1)).sum().backward();
        }
        run.reducer->finish_backward();
        const auto found = find_not_finite(run);
        const bool expects = bad_rank && scenario.parameter;
        expect(found.has_value() == expects, found ? "found one" : "found none");
        if (!expects) return;
        expect(found->parameter == *scenario.parameter, "parameter " + std::to_string(found->parameter));
        expect(found->too_large == scenario.too_large, "too large");
      });
    }
  }
}

}  // namespace zerorun::testing
