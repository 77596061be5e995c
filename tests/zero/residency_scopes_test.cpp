// Tests scopes that hold buckets in memory, for each kind of bucket and each way in which a scope can end
// (ScopeEnd). Also tests the parameters' values after the Residency is destroyed.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <memory>
#include <numeric>

#include "tests/zero/residency_model.h"
#include "zero/residency.h"

namespace zerorun::testing {
namespace {

const std::vector<int> kHeld = {Model::bucket_of(0)};

// Writes to the parameter's memory without an operator.
void fill_raw(const at::Tensor& leaf, double value) {
  at::from_blob(leaf.mutable_data_ptr(), leaf.sizes(), leaf.scalar_type()).fill_(value);
}

// Ends a scope as GatheredParameters does with modifier rank 0.
void end_modified(Model& model) {
  const at::Tensor values = model.residency.start_write(kHeld.front());
  const at::Tensor piece = model.state.buckets.piece(0, values);
  model.communicator.broadcast(piece, 0, "what rank 0 wrote")->wait();
  model.residency.unhold(kHeld, ScopeEnd::written);
}

}  // namespace

TEST_CASE("residency: held buckets are in memory until the last scope ends") {
  check_kinds(kKinds, 1, [](Model& model) {
    model.residency.hold(kHeld);
    expect_equal(raw_values(model.leaves[0]), model.given(0), "in memory");
    model.expect_guarded(1, "what is not held");
    model.residency.hold(kHeld);
    model.residency.unhold(kHeld, ScopeEnd::read);
    expect_equal(raw_values(model.leaves[0]), model.given(0), "in the outer scope");
    model.expect_values(model.all_given(), "operators in the scope");
    expect_equal(raw_values(model.leaves[0]), model.given(0), "after operators");
    model.residency.finish_iteration();
    expect_equal(raw_values(model.leaves[0]), model.given(0), "after an iteration has ended");
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.expect_guarded(0, "after the scope");
    model.expect_values(model.all_given(), "operators after the scope");
  });
}

TEST_CASE("residency: a scope that only reads leaves everything as it is, again and again") {
  check_kinds(kKinds, 1, [](Model& model) {
    const std::vector<int> all = {0, 1, 2};
    for (int step = 1; step <= 4; ++step) {
      model.residency.hold(all);
      for (int index = 0; index < 3; ++index) {
        expect_equal(raw_values(model.leaves[index]), model.given(index) + (step - 1) * model.owners(index),
                     c10::str("p", index, " in scope ", step));
      }
      model.residency.unhold(all, ScopeEnd::read);
      model.update(1);
    }
  });
}

TEST_CASE("residency: writes of all ranks by operators in a read-only scope are kept") {
  check_kinds(kKinds, 1, [](Model& model) {
    for (const bool nested : {false, true}) {
      model.residency.hold(kHeld);
      if (nested) model.residency.hold(kHeld);
      at::Tensor(model.leaves[0]).mul_(2);
      expect_equal(raw_values(model.leaves[0]), (nested ? 4 : 2) * model.given(0), "in the scope");
      if (nested) model.residency.unhold(kHeld, ScopeEnd::read);
      model.residency.unhold(kHeld, ScopeEnd::read);
      model.expect_guarded(0, "after the scope");
      model.expect_values({(nested ? 4 : 2) * model.given(0), model.given(1), model.given(2)}, "after it");
      model.update(0);
      model.expect_values({(nested ? 4 : 2) * model.given(0), model.given(1), model.given(2)}, "updated");
    }
  });
}

TEST_CASE("residency: writes of one rank alone to a shared, partitioned bucket in a scope are lost") {
  check_kinds({kKinds[3], kKinds[5]}, 2, [](Model& model) {
    model.residency.hold(kHeld);
    if (model.communicator.rank() == 0) at::Tensor(model.leaves[0]).mul_(2);
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.expect_values(model.all_given(), "after the scope");
    model.update(1);
    expect_equal(model.leaves[0], model.given(0) + model.owners(0), "after an update");
    // The result is the same if an update follows the scope directly, without a use by all ranks in between.
    model.residency.hold(kHeld);
    if (model.communicator.rank() == 0) at::Tensor(model.leaves[0]).mul_(2);
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.update(1);
    expect_equal(model.leaves[0], model.given(0) + 2 * model.owners(0), "an update right behind the scope");
  });
}

TEST_CASE("residency: a scope directly after another one sees the writes that are kept") {
  check_kinds({kKinds[0], kKinds[3], kKinds[4], kKinds[5]}, 2, [](Model& model) {
    model.residency.hold(kHeld);
    at::Tensor(model.leaves[0]).mul_(2);
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.residency.hold(kHeld);
    expect_equal(raw_values(model.leaves[0]), 2 * model.given(0), "what all have written");
    model.residency.unhold(kHeld, ScopeEnd::read);
  });
  check_kinds({kKinds[3], kKinds[5]}, 2, [](Model& model) {
    model.residency.hold(kHeld);
    if (model.communicator.rank() == 0) at::Tensor(model.leaves[0]).mul_(2);
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.residency.hold(kHeld);
    expect_equal(raw_values(model.leaves[0]), model.given(0), "what one has written");
    model.residency.unhold(kHeld, ScopeEnd::read);
  });
}

TEST_CASE("residency: held buckets stay in memory even if the limits have no room for others") {
  auto body = [](Model& model) {
    for (int iteration = 0; iteration < 3; ++iteration) {
      model.residency.hold(kHeld);
      model.expect_values(model.all_given(), "in the scope");
      expect_equal(raw_values(model.leaves[0]), model.given(0), "in memory");
      model.residency.unhold(kHeld, ScopeEnd::read);
      model.residency.finish_iteration();
    }
  };
  check_kinds(kKinds, 1, body, {.max_live = 0, .max_reuse_distance = 0, .prefetch = 0});
}

TEST_CASE("residency: all ranks get the writes of the modifier rank in a scope") {
  check_kinds(kKinds, 1, [](Model& model) {
    for (int round = 1; round <= 2; ++round) {
      model.residency.hold(kHeld);
      if (model.communicator.rank() == 0) fill_raw(model.leaves[0], 7 * round);
      end_modified(model);
      model.expect_guarded(0, "after the scope");
      model.expect_values({at::full({96}, 7.0 * round), model.given(1), model.given(2)}, "after it");
      model.update(0);
      model.expect_values({at::full({96}, 7.0 * round), model.given(1), model.given(2)}, "updated");
    }
    // An update directly after the scope adds to the values written in the scope.
    model.residency.hold(kHeld);
    if (model.communicator.rank() == 0) fill_raw(model.leaves[0], -1);
    end_modified(model);
    model.update(1);
    expect_equal(model.leaves[0], model.owners(0) - 1, "an update right behind the scope");
  });
}

TEST_CASE(
    "residency: raw writes in an abandoned scope are lost, except in whole buckets that are not shared") {
  check_kinds({kKinds[0], kKinds[2], kKinds[3], kKinds[4], kKinds[5]}, 2, [](Model& model) {
    model.residency.hold(kHeld);
    fill_raw(model.leaves[0], -1);
    model.residency.unhold(kHeld, ScopeEnd::abandoned);
    model.expect_guarded(0, "after the scope");
    model.expect_values(model.all_given(), "after it");
    model.update(1);
    expect_equal(model.leaves[0], model.given(0) + model.owners(0), "after an update");
    // The abandoned scope does not affect the next one.
    model.residency.hold(kHeld);
    expect_equal(raw_values(model.leaves[0]), model.given(0) + model.owners(0), "in the next scope");
    if (model.communicator.rank() == 0) fill_raw(model.leaves[0], 3);
    end_modified(model);
    expect_equal(model.leaves[0], at::full({96}, 3.0), "after the next scope");
  });
}

TEST_CASE("residency: operators' writes in an abandoned scope are lost, except in whole, unshared buckets") {
  check_kinds({kKinds[0], kKinds[2], kKinds[3], kKinds[4], kKinds[5]}, 2, [](Model& model) {
    model.residency.hold(kHeld);
    if (model.communicator.rank() == 0) at::Tensor(model.leaves[0]).mul_(2);
    model.residency.unhold(kHeld, ScopeEnd::abandoned);
    model.expect_values(model.all_given(), "after the scope");
    model.update(1);
    expect_equal(model.leaves[0], model.given(0) + model.owners(0), "after an update");
  });
}

TEST_CASE("residency: writes of all ranks before an abandoned scope are kept") {
  check_kinds({kKinds[0], kKinds[4], kKinds[5]}, 2, [](Model& model) {
    at::Tensor(model.leaves[0]).add_(1);
    model.residency.hold(kHeld);
    if (model.communicator.rank() == 0) at::Tensor(model.leaves[0]).mul_(2);
    model.residency.unhold(kHeld, ScopeEnd::abandoned);
    expect_equal(model.leaves[0], model.given(0) + 1, "after the scope");
  });
}

TEST_CASE("residency: ranks start the same gathers after a scope that is abandoned in an iteration") {
  check_kinds(kKinds, 2, [](Model& model) {
    for (int iteration = 0; iteration < 3; ++iteration) {
      model.expect_values(model.all_given(), "in an iteration");
      if (iteration == 2) {  // the plan keeps the bucket until its use below
        model.residency.hold(kHeld);
        if (model.communicator.rank() == 0 && model.kind.partitioned) at::Tensor(model.leaves[0]).mul_(2);
        model.residency.unhold(kHeld, ScopeEnd::abandoned);
      }
      expect_equal(model.leaves[0], model.given(0), "after the scope");
      model.residency.finish_iteration();
    }
  });
}

TEST_CASE("residency: an exception of an operator in a scope leaves held buckets unchanged") {
  check_kinds(kKinds, 1, [](Model& model) {
    model.residency.hold(kHeld);
    expect_throws<c10::Error>([&] { (void)(model.leaves[0] + at::zeros({95})); }, {"size"}, "sizes");
    expect_equal(raw_values(model.leaves[0]), model.given(0), "in the scope still");
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.expect_guarded(0, "after the scope");
    model.expect_values(model.all_given(), "after it");
  });
}

TEST_CASE("residency: a scope sees earlier writes") {
  check_kinds(kKinds, 1, [](Model& model) {
    at::Tensor(model.leaves[0]).add_(1);
    model.residency.hold(kHeld);
    expect_equal(raw_values(model.leaves[0]), model.given(0) + 1, "written in the same iteration");
    model.residency.unhold(kHeld, ScopeEnd::read);
    model.expect_values({model.given(0) + 1, model.given(1), model.given(2)}, "after the scope");
    model.update(0);
    model.residency.hold(kHeld);
    expect_equal(raw_values(model.leaves[0]), model.given(0) + 1, "after an update");
    model.residency.unhold(kHeld, ScopeEnd::read);
  });
}

TEST_CASE("residency: writes of the program to 16-bit parameters reach the master weights") {
  for (const Kind& kind : kKinds) {
    for (int ranks = 1; ranks <= 3; ++ranks) {
      INFO(kind.name);
      check_on_ranks(ranks, kind.shares_memory, [&](Communicator& communicator) {
        torch::NoGradGuard no_grad;
        Model model(kind, communicator, {}, Dtype::bf16);
        auto expect_masters = [&](int parameter, const at::Tensor& expected) {
          const StateTensor& master = model.state.store.at(Model::bucket_of(parameter), kMaster);
          at::Tensor all = at::empty({master.own.numel() * communicator.world_size()});
          communicator.all_gather(all, master.own.clone(), "master weights for the test")->wait();
          expect_equal(model.state.buckets.view(parameter, all), expected, parameter_name(parameter));
        };
        auto rounded = [&](int parameter) { return model.given(parameter).to(at::kBFloat16).to(at::kFloat); };

        at::Tensor(model.leaves[1]).fill_(3);  // by an operator
        model.start_update();
        expect_masters(0, rounded(0));
        expect_masters(1, at::full({5, 7}, 3.0));
        model.finish_update(0);

        model.residency.hold(kHeld);  // for a write by raw access
        if (communicator.rank() == 0) fill_raw(model.leaves[0], 5);
        end_modified(model);
        model.start_update();
        expect_masters(0, at::full({96}, 5.0));
        expect_masters(2, rounded(2));
        model.finish_update(0);
      });
    }
  }
}

TEST_CASE("residency: the last update reaches parameters that are not used afterwards") {
  for (const Kind& kind : {kKinds[1], kKinds[2]}) {
    for (const bool synchronized : {false, true}) {
      INFO(kind.name << (synchronized ? ", synchronized" : ""));
      check_on_ranks(2, kind.shares_memory, [&](Communicator& communicator) {
        torch::NoGradGuard no_grad;
        auto model = std::make_unique<Model>(kind, communicator);
        model->update(100);
        if (synchronized) {
          model->residency.synchronize();
          fill_raw(model->leaves[2], -5);
        }
        const std::vector<at::Tensor> leaves = model->leaves;
        at::Tensor expected = model->given(0) + 100 * model->owners(0);
        at::Tensor last = synchronized ? at::full({64}, -5.0) : model->given(2) + 100 * model->owners(2);
        model.reset();
        expect_equal(leaves[0], expected, "by an operator");
        expect_equal(raw_values(leaves[0]), expected, "in memory");
        expect_equal(raw_values(leaves[2]), last, "p2 in memory");
      });
    }
  }
}

}  // namespace zerorun::testing
