#include "tests/random_programs/plain_run.h"

#include <array>
#include <limits>

#include "tests/random_programs/plain_training.h"

namespace zerorun::testing {
namespace {

enum class Flow {
  on,
  left_by_some,  // an exception leaves the block on one rank; the other ranks have nothing more to do in it
  left_by_all,
  over,  // the program ends here
};

class PlainRun {
 public:
  explicit PlainRun(const Program& program)
      : program_(program), training_(program), journals_(program.setup.ranks) {}

  std::vector<Journal> run() {
    run(program_.operations);
    for (int pass = 0; pass < (program_.setup.stage == 3 ? 1 : 2); ++pass) {
      each_rank([&](int rank) { note_all(rank, pass == 0 ? "in the end" : "when the engine has gone"); });
    }
    return std::move(journals_);
  }

 private:
  struct Scope {
    struct Saved {
      int rank;
      int parameter;
      at::Tensor value;
    };
    std::vector<Saved> saved;  // values before the modifier's raw writes
  };

  template <typename Body>
  void each_rank(const Body& body) {
    for (int rank = 0; rank < training_.ranks(); ++rank) body(rank);
  }
  static bool takes_part(const Operation& operation, int rank) {
    return operation.rank == kEverybody || operation.rank == rank;
  }
  const at::Tensor& parameter(int rank, int index) const { return training_.parameters(rank)[index]; }
  void note(int rank, const std::string& what, const at::Tensor& value) {
    journals_[rank].push_back({what, value.detach().clone(), {}});
  }
  void note_text(const std::string& what, const std::string& text) {
    each_rank([&](int rank) { journals_[rank].push_back({what, {}, text}); });
  }
  void note_all(int rank, const std::string& what) {
    for (size_t index = 0; index < program_.parameters.size(); ++index) {
      note(rank, c10::str(what, ", p", index), parameter(rank, static_cast<int>(index)));
    }
  }

  Flow run(const std::vector<Operation>& operations) {
    for (const Operation& operation : operations) {
      if (const Flow flow = run(operation); flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow run(const Operation& operation) {
    switch (operation.kind) {
      case Kind::forward:
      case Kind::failing_forward:
      case Kind::evaluate:
        each_rank([&](int rank) { run_forward(operation, rank); });
        return Flow::on;
      case Kind::backward:
        training_.backward(losses_[operation.slot], operation.retain, no_syncs_ == 0, operation.how == 1);
        return Flow::on;
      case Kind::failing_backward:
        training_.drop_gradients();
        return Flow::on;
      case Kind::step:
        return run_step();
      case Kind::read:
      case Kind::raw_read:
        each_rank([&](int rank) {
          if (!takes_part(operation, rank)) return;
          for (int index : operation.parameters) note(rank, c10::str("p", index), parameter(rank, index));
        });
        return Flow::on;
      case Kind::write:
      case Kind::raw_write:
      case Kind::rank_write:
        each_rank([&](int rank) {
          if (takes_part(operation, rank)) write(operation, rank);
        });
        return Flow::on;
      case Kind::scope:
        return run_scope(operation);
      case Kind::no_sync: {
        ++no_syncs_;
        const Flow flow = run(operation.body);
        --no_syncs_;
        return flow;
      }
      case Kind::attempt: {
        const Flow flow = run(operation.body);
        return flow == Flow::over ? flow : Flow::on;
      }
      case Kind::fail:
        return operation.rank == kEverybody ? Flow::left_by_all : Flow::left_by_some;
      case Kind::remake:
        run(operation.body);
        begin_again();
        return Flow::on;
      case Kind::synchronize:
      case Kind::raw_refused:
      case Kind::companion:
      case Kind::fork:
        return Flow::on;
    }
    return Flow::on;
  }

  void run_forward(const Operation& operation, int rank) {
    const bool fails = operation.kind == Kind::failing_forward && takes_part(operation, rank);
    if (fails) return;
    const std::vector<int> uses = uses_of(operation, rank);
    const std::vector<at::Tensor>& parameters = training_.parameters(rank);
    if (operation.kind == Kind::evaluate) {
      torch::NoGradGuard no_grad;
      return note(rank, "evaluation", loss_of(parameters, uses, operation.data, rank));
    }
    at::Tensor loss = loss_of(parameters, uses, operation.data, rank);
    const bool poisoned = operation.poison == kEverybody || operation.poison == rank;
    if (poisoned) loss = loss * std::numeric_limits<float>::infinity();
    note(rank, "loss", loss);
    if (operation.kind != Kind::forward) return;
    losses_[operation.slot].resize(training_.ranks());
    losses_[operation.slot][rank] = loss;
  }

  Flow run_step() {
    const char* refusal = no_syncs_ > 0                ? kStepInNoSync
                          : !scopes_.empty()           ? kStepInScope
                          : !training_.has_gradients() ? kStepWithoutBackward
                                                       : nullptr;
    if (refusal) {
      note_text("step() is refused", refusal);
      return Flow::on;
    }
    const PlainTraining::Ending ending = training_.step();
    if (ending == PlainTraining::Ending::goes_on) {
      note_text("step()", training_.report());
      return Flow::on;
    }
    // Training is over if the loss scale is at its minimum. If the schedule threw instead, the update has
    // still been applied, and the engine calls the schedule again when the program next uses the engine.
    const bool over = ending == PlainTraining::Ending::scale_at_minimum;
    note_text("step() throws", over ? kScaleAtMinimum : kScheduleThrows);
    return over ? Flow::over : Flow::on;
  }

  void write(const Operation& operation, int rank) {
    for (int index : operation.parameters) {
      const bool raw =
          operation.kind == Kind::raw_write || (operation.kind == Kind::rank_write && operation.how != 0);
      if (raw && !scopes_.empty()) {
        scopes_.back().saved.push_back({rank, index, parameter(rank, index).detach().clone()});
      }
      if (raw) {
        write_raw(parameter(rank, index), operation.data);
      } else {
        write_by_operator(parameter(rank, index), operation.data);
      }
    }
  }

  Flow run_scope(const Operation& operation) {
    torch::NoGradGuard no_grad_for_copies;
    scopes_.emplace_back();
    Flow flow;
    {
      torch::AutoGradMode with_grad(true);
      flow = run(operation.body);
    }
    std::vector<Scope::Saved> saved = std::move(scopes_.back().saved);
    scopes_.pop_back();
    if (flow == Flow::left_by_all) {
      // If an exception leaves the scope on all ranks, the engine drops what was written in it through
      // pointers.
      for (auto item = saved.rbegin(); item != saved.rend(); ++item) {
        at::Tensor(parameter(item->rank, item->parameter)).copy_(item->value);
      }
    } else if (operation.rank >= 0) {
      for (int index : operation.parameters) share(index, operation.rank);
    }
    return flow;
  }

  void share(int index, int modifier) {
    each_rank([&](int rank) {
      if (rank != modifier) at::Tensor(parameter(rank, index)).copy_(parameter(modifier, index));
    });
    for (Scope& outer : scopes_) {
      std::erase_if(outer.saved, [&](const Scope::Saved& saved) { return saved.parameter == index; });
    }
  }

  void begin_again() {
    training_.begin(false);
    each_rank([&](int rank) { note_all(rank, "with a new engine"); });
  }

  const Program& program_;
  PlainTraining training_;
  std::vector<Journal> journals_;
  std::array<std::vector<at::Tensor>, 3> losses_;  // by slot and rank
  std::vector<Scope> scopes_;
  int no_syncs_ = 0;
};

}  // namespace

std::vector<Journal> run_plainly(const Program& program) {
  return PlainRun(program).run();
}

}  // namespace zerorun::testing
