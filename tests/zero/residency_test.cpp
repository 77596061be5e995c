// Tests when parameters have memory and which values they have then, around operators and in scopes, for each
// kind of bucket.
#include "zero/residency.h"

#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "tests/zero/residency_model.h"

namespace zerorun::testing {

TEST_CASE("residency: values are in memory while an operator runs, and only then") {
  // The first limits allow all buckets to stay in memory, the second allow none, and the third allow two.
  // With the third limits, gathers also start before their use.
  for (const GatherLimits limits : {GatherLimits{}, GatherLimits{0, 0, 0}, GatherLimits{192, 100, 192}}) {
    INFO("at most " << limits.max_live << " elements");
    auto body = [](Model& model) {
      for (int iteration = 0; iteration < 4; ++iteration) {
        const std::string where = "iteration " + std::to_string(iteration);
        for (int index = 0; index < 3; ++index) model.expect_guarded(index, where + ", before");
        model.expect_values(model.all_given(), where);
        for (int index = 0; index < 3; ++index) model.expect_guarded(index, where + ", after its use");
        expect_equal(model.leaves[0].view({12, 8}).narrow(0, 2, 3), numbered({3, 8}, 1016),
                     where + ", a view");
        expect_equal(model.leaves[0].narrow(0, 0, 64) + model.leaves[2],
                     numbered({64}, 1000) + model.given(2), where + ", two at once");
        model.residency.finish_iteration();
        for (int index = 0; index < 3; ++index) model.expect_guarded(index, where + ", at its end");
      }
      expect(model.residency.report().departures == 0, "an iteration that departed from the trace");
    };
    check_kinds(kKinds, 1, body, limits);
  }
}

TEST_CASE("residency: backward uses the right values") {
  check_kinds(kKinds, 1, [](Model& model) {
    torch::AutoGradMode grad(true);
    for (int iteration = 0; iteration < 3; ++iteration) {
      const at::Tensor loss = model.leaves[0].square().sum() + model.leaves[1].cos().sum();
      model.residency.finish_iteration();  // as an evaluation between forward and backward would
      const auto gradients = torch::autograd::grad({loss}, {model.leaves[0], model.leaves[1]});
      expect_equal(gradients[0], 2 * model.given(0), "gradient of p0");
      expect_equal(gradients[1], -model.given(1).sin(), "gradient of p1");
      model.expect_guarded(0, "after backward");
      model.residency.finish_iteration();
    }
  });
}

TEST_CASE("residency: an iteration that departs from the trace uses the right values") {
  auto body = [](Model& model) {
    for (const std::vector<int>& uses : std::vector<std::vector<int>>{
             {0, 1, 2}, {0, 1, 2}, {2, 0, 1, 0}, {2, 0, 1, 0}, {1}, {}, {0, 1, 2}}) {
      for (const int index : uses) expect_equal(model.leaves[index], model.given(index), "a use");
      model.residency.finish_iteration();
    }
  };
  check_kinds(kKinds, 1, body);
  check_kinds(kKinds, 1, body, {.max_live = 100, .max_reuse_distance = 100, .prefetch = 100});
}

TEST_CASE("residency: evaluation between iterations of training, and training itself, use the right values") {
  auto body = [](Model& model) {
    for (int round = 0; round < 3; ++round) {
      model.in_training = true;
      model.expect_values(model.all_given(), "training");
      model.residency.finish_iteration();
      model.in_training = false;
      for (int batch = 0; batch < 3; ++batch) {  // no call marks the end of an iteration
        for (const int index : {2, 0, 1}) {
          expect_equal(model.leaves[index], model.given(index), "evaluation");
          model.expect_guarded(index, "in evaluation");
        }
      }
    }
    // Each training iteration used the same parameters, so the evaluations between them must not count as
    // departures.
    expect(model.residency.report().departures == 0, "an iteration that departed from its trace");
  };
  check_kinds(kKinds, 1, body);
  check_kinds(kKinds, 1, body, {.max_live = 100, .max_reuse_distance = 100, .prefetch = 100});
}

TEST_CASE("residency: an operator that throws leaves nothing pinned") {
  check_kinds(kKinds, 1, [](Model& model) {
    expect_throws<c10::Error>([&] { (void)(model.leaves[0] + at::zeros({95})); }, {"size"},
                              "sizes that differ");
    model.expect_guarded(0, "after the exception");
    expect_throws<c10::Error>([&] { at::Tensor(model.leaves[2]).add_(at::zeros({63})); }, {"size"},
                              "in place");
    model.expect_guarded(2, "after the exception in place");
    model.residency.finish_iteration();
    if (model.kind.comes_and_goes() && model.communicator.world_size() > 1) {
      // If p0 were still pinned, it would not have been released.
      const int64_t before = model.residency.report().gathers;
      (void)model.leaves[0].sum();
      expect(model.residency.report().gathers > before, "p0 was not released");
    }
    model.expect_values(model.all_given(), "after the exceptions");
    model.update(100);
    model.expect_values({model.given(0) + 100 * model.owners(0), model.given(1) + 100 * model.owners(1),
                         model.given(2) + 100 * model.owners(2)},
                        "after an update");
  });
}

TEST_CASE("residency: in-place writes of all ranks are visible at once, and are kept") {
  check_kinds(kKinds, 1, [](Model& model) {
    model.expect_values(model.all_given(), "before");
    at::Tensor leaf = model.leaves[0];
    leaf.mul_(2);
    expect_equal(leaf, 2 * model.given(0), "right behind the write");
    leaf.narrow(0, 3, 70).add_(1);  // through a view
    at::Tensor expected = 2 * model.given(0);
    expected.narrow(0, 3, 70).add_(1);
    model.expect_values({expected, model.given(1), model.given(2)}, "in the same iteration");
    model.expect_guarded(0, "after the write");
    model.residency.finish_iteration();
    model.expect_values({expected, model.given(1), model.given(2)}, "in the next one");
    model.update(0);
    model.expect_values({expected, model.given(1), model.given(2)}, "after an update");
    for (int iteration = 0; iteration < 2; ++iteration) {  // by now the trace is followed
      leaf.sub_(5);
      expected.sub_(5);
      model.expect_values({expected, model.given(1), model.given(2)}, "written again");
      model.update(0);
    }
    model.expect_values({expected, model.given(1), model.given(2)}, "at the end");
  });
}

// Each rank writes a different value, so the values show which rank each slice comes from: that rank must be
// the slice's owner.
TEST_CASE("residency: if ranks write different values, all ranks get each owner's slice") {
  check_kinds(kKinds, 1, [](Model& model) {
    at::Tensor(model.leaves[0]).fill_(model.communicator.rank() + 1);
    model.residency.finish_iteration();
    if (model.kind.partitioned) {
      model.expect_values({model.owners(0), model.given(1), model.given(2)}, "after the release");
    }
    model.update(0);
    model.expect_values({model.owners(0), model.given(1), model.given(2)}, "after an update");
    // A written value that no operator reads before the update is kept, and the update adds to it.
    at::Tensor(model.leaves[1]).fill_(10 * (model.communicator.rank() + 1));
    model.update(3);
    model.expect_values({4 * model.owners(0), 13 * model.owners(1), model.given(2) + 3 * model.owners(2)},
                        "an update behind a write");
  });
}

TEST_CASE("residency: threads of a rank may use the same parameter at the same time") {
  check_kinds(kKinds, 1, [](Model& model) {
    expect_equal(model.leaves[0], model.given(0), "before");  // gathers p0, so that no thread has to
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
      threads.emplace_back([&] {
        torch::NoGradGuard no_grad;
        for (int round = 0; round < 200; ++round) wrong += !at::equal(model.leaves[0] * 1, model.given(0));
      });
    }
    for (std::thread& thread : threads) thread.join();
    expect(wrong == 0, "other values in some thread");
    model.expect_guarded(0, "after all threads");
  });
}

TEST_CASE("residency: all ranks get the values that owners write in an update") {
  check_kinds(kKinds, 1, [](Model& model) {
    for (int step = 1; step <= 4; ++step) {
      const std::string where = "step " + std::to_string(step);
      model.update(100);
      if (step % 2 == 0) model.residency.synchronize();
      std::vector<at::Tensor> expected;
      for (int index = 0; index < 3; ++index) {
        expected.push_back(model.given(index) + 100.0 * step * model.owners(index));
      }
      model.expect_values(expected, where);
      model.expect_values(expected, where + ", once more");
      if (!model.kind.partitioned) {
        model.residency.synchronize();
        expect_equal(raw_values(model.leaves[0]), expected[0], where + ", in memory");
      }
    }
  });
}

TEST_CASE("residency: raw access between an update and the first use throws an error with the remedy") {
  check_kinds({kKinds[1], kKinds[2]}, 2, [](Model& model) {
    model.update(3);
    for (int index = 0; index < 3; ++index) {
      expect_throws<std::exception>([&] { (void)model.leaves[index].const_data_ptr(); },
                                    {"engine.synchronize()"}, parameter_name(index));
    }
    model.residency.synchronize();
    const at::Tensor expected = model.given(0) + 3 * model.owners(0);
    expect_equal(raw_values(model.leaves[0]), expected, "after synchronize()");
    // Raw access writes to this rank's copy. The next update sends this rank's slice of the copy to the other
    // ranks.
    model.communicator.barrier("all have read")->wait();
    at::from_blob(model.leaves[0].mutable_data_ptr(), {96}).fill_(model.communicator.rank() + 1);
    model.update(10);
    expect_equal(model.leaves[0], 11 * model.owners(0), "written in memory, and updated");
    model.expect_guarded(0, "after the update");
  });
}

TEST_CASE("residency: the report counts gathers") {
  for (const Kind& kind : kKinds) {
    INFO(kind.name);
    check_on_ranks(2, kind.shares_memory, [&](Communicator& communicator) {
      torch::NoGradGuard no_grad;
      Model model(kind, communicator);
      const bool passes = kind.comes_and_goes();
      const int sharing = kind.shares_memory ? 2 : 1;  // number of ranks that share a bucket's memory
      int64_t gathers = 0;
      auto expect_more = [&](int64_t more, const std::string& what) {
        gathers += more;
        const ResidencyReport report = model.residency.report();
        expect(report.gathers == gathers, c10::str(what, ": ", report.gathers, " gathers, not ", gathers));
      };
      expect_more(0, "at the start");
      expect(model.residency.report().resident_bytes == 0, "memory at the start");
      (void)model.leaves[0].sum();
      expect_more(passes ? 1 : 0, "the first use");
      expect(model.residency.report().resident_bytes == (passes ? 4 * 128 / sharing : 0), "memory behind p0");
      (void)model.leaves[0].sum();
      (void)(model.leaves[0] * 2);
      expect_more(0, "more uses of what is there");
      (void)model.leaves[1].sum();
      expect_more(passes ? 1 : 0, "a use of another one");
      model.residency.finish_iteration();
      (void)model.leaves[0].sum();
      (void)model.leaves[1].sum();
      expect_more(passes ? 2 : 0, "the next iteration");
      model.residency.finish_iteration();
      const std::vector<int> held = {0, 2};
      model.residency.hold(held);
      expect_more(passes ? 2 : 0, "a scope that holds two");
      model.residency.unhold(held, ScopeEnd::read);
      model.update(1);
      expect_more(passes ? 0 : 3, "an update of three buckets");
      model.residency.synchronize();
      const ResidencyReport report = model.residency.report();
      expect(report.waited + report.ready == gathers, "gathers that were waited for or ready");
      expect(report.peak_resident_bytes >= report.resident_bytes, "the peak");
    });
  }
}

TEST_CASE("residency: the error about a forbidden change of state names both states") {
  check_kinds({kKinds[1], kKinds[2], kKinds[3]}, 2, [](Model& model) {
    const int bucket = Model::bucket_of(0);
    model.update(1);
    expect_throws<InternalError>([&] { model.residency.finish_update(bucket, true); },
                                 {"bucket 2 (p0)", "from gathering to gathering"},
                                 "a second finish_update()");
    expect_equal(model.leaves[0], model.given(0) + model.owners(0), "p0 after the error");
  });
  check_kinds({kKinds[0], kKinds[4], kKinds[5]}, 1, [](Model& model) {
    const std::vector<int> bucket = {Model::bucket_of(0)};
    expect_throws<InternalError>([&] { model.residency.unhold(bucket, ScopeEnd::written); },
                                 {"bucket 2 (p0)", "from sharded to dirty"}, "unhold() without hold()");
    model.expect_values(model.all_given(), "after the error");
  });
  check_kinds({kKinds[2], kKinds[3]}, 1, [](Model& model) {
    const std::vector<int> bucket = {Model::bucket_of(0)};
    expect_throws<InternalError>([&] { model.residency.unhold(bucket, ScopeEnd::written); },
                                 {"bucket 2 (p0)", "from resident to dirty"}, "unhold() without hold()");
    model.expect_values(model.all_given(), "after the error");
  });
}

}  // namespace zerorun::testing
