#include "tests/random_programs/plain_run.h"

#include <array>
#include <limits>

#include "tests/random_programs/expected_errors.h"
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
      : program_(program), training_(program), errors_(program, training_), journals_(program.setup.ranks) {}

  std::vector<Journal> run() {
    run(program_.operations);
    for (int pass = 0; pass < (program_.setup.stage == 3 ? 1 : 2); ++pass) {
      note_all(pass == 0 ? "in the end" : "when the engine has gone");
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
  void note_all(const std::string& what) {
    each_rank([&](int rank) {
      for (size_t index = 0; index < program_.parameters.size(); ++index)
        note(rank, c10::str(what, ", p", index), parameter(rank, static_cast<int>(index)));
    });
  }

  Flow run(const std::vector<Operation>& operations) {
    for (const Operation& operation : operations) {
      if (const Flow flow = run(operation); flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow run(const Operation& operation) {
    if (may_be_refused(operation.kind)) {
      const char* refusal = lacks_file(operation) ? kLeftOut : errors_.of(operation);
      note_text(name_of(operation.kind), refusal ? refusal : "");
      if (refusal) return Flow::on;
    }
    switch (operation.kind) {
      case Kind::forward:
      case Kind::failing_forward:
      case Kind::evaluate:
        each_rank([&](int rank) { run_forward(operation, rank); });
        return Flow::on;
      case Kind::step:
        return run_step(operation);
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
        ++errors_.open_no_syncs;
        const Flow flow = run(operation.body);
        --errors_.open_no_syncs;
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
        note_all("with a new engine");
        return Flow::on;
      default:
        run_change(operation);
        return Flow::on;
    }
  }

  // What programs do to gradients, to the engine's state and to its settings.
  void run_change(const Operation& operation) {
    switch (operation.kind) {
      case Kind::backward:
        training_.backward(losses_[operation.slot], operation.retain, errors_.open_no_syncs == 0,
                           operation.how != by_engine);
        return errors_.note_backward();
      case Kind::failing_backward:
        return training_.drop_gradients(/*threw=*/true);
      case Kind::drop:
        if (!errors_.drops(operation)) return;
        training_.drop_gradients(/*threw=*/false);
        return errors_.note_end_of_window();
      case Kind::gradient:
        return run_gradient(operation);
      case Kind::flip:
        each_rank([&](int rank) {
          for (int index : operation.parameters) flip(parameter(rank, index));
        });
        return;
      case Kind::boundary:
        return training_.set_boundary(operation.how != 0);
      case Kind::group:
        return operation.how == of_rate ? training_.set_rate(operation.slot % kGroups, rate_of(operation))
                                        : training_.set_decay(operation.slot % kGroups, rate_of(operation));
      case Kind::state:
        for (int index : operation.parameters) {
          const at::Tensor moment = training_.moment(index);
          if (operation.how == 0)
            each_rank([&](int rank) { note(rank, c10::str("moment of p", index), moment); });
          if (operation.how == 1) moment.copy_(numbers(moment.sizes(), operation.data));
        }
        return;
      case Kind::optimizer_file:
        if (operation.how == 0) optimizer_file_ = training_.moments();
        if (operation.how == 1) training_.set_moments(*optimizer_file_);
        return;
      case Kind::save:
        checkpoints_[operation.slot] = training_.save(/*with_frozen=*/operation.how != 2);
        return;
      case Kind::load:
        load(operation.slot);
        return note_all("of a checkpoint");
      case Kind::resume: {
        begin_again();
        const bool loads = checkpoints_[operation.slot] != nullptr;
        note_text("load_checkpoint()", loads ? "" : kLeftOut);
        if (loads) load(operation.slot);
        return note_all("of a new engine with a checkpoint");
      }
      case Kind::evaluator:
        return run_evaluator(operation);
      default:
        return;
    }
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

  Flow run_step(const Operation& operation) {
    if (const char* refusal = errors_.of(operation)) {
      note_text("step()", refusal);
      return Flow::on;
    }
    const PlainTraining::Ending ending = training_.step();
    if (!training_.holds_gradients()) errors_.note_end_of_window();
    // Training is over if the loss scale is at its minimum. If the schedule threw instead, the update has
    // still been applied, and the engine calls the schedule again when the program next uses the engine.
    const bool over = ending == PlainTraining::Ending::scale_at_minimum;
    const bool goes_on = ending == PlainTraining::Ending::goes_on;
    note_text("step()", goes_on ? "" : over ? kScaleAtMinimum : kScheduleThrows);
    if (!goes_on) return over ? Flow::over : Flow::on;
    note_text("the step's report", training_.report());
    const at::Tensor norm = at::scalar_tensor(training_.last_norm(), at::kFloat);
    each_rank([&](int rank) { note(rank, "the norm", norm); });
    return Flow::on;
  }

  bool lacks_file(const Operation& operation) const {
    if (operation.kind == Kind::load) return !checkpoints_[operation.slot];
    return operation.kind == Kind::optimizer_file && operation.how == 1 && !optimizer_file_;
  }

  void run_gradient(const Operation& operation) {
    for (int index : operation.parameters) {
      const at::Tensor gradient = training_.gradient(index);
      each_rank([&](int rank) { note(rank, c10::str("gradient of p", index), gradient); });
      if (operation.how == 0) continue;
      // A gradient that was not finite counts, also if it is replaced.
      const bool writes = training_.finite();
      note_text("writes", writes ? "" : kLeftOut);
      if (writes) training_.set_gradient(index, numbers(gradient.sizes(), operation.data));
    }
  }

  void load(int slot) {
    training_.load(*checkpoints_[slot]);
    errors_.note_load(training_.holds_gradients());
  }

  void run_evaluator(const Operation& operation) {
    torch::NoGradGuard no_grad;
    const auto& checkpoint = checkpoints_[operation.slot];
    note_text("load_checkpoint()", checkpoint && operation.how == 1 ? "" : kLeftOut);
    Model model(program_);
    const at::ScalarType dtype = parameter(0, 0).scalar_type();
    for (size_t index = 0; index < model.all.size(); ++index) {
      at::Tensor& value = model.all[index];
      value = checkpoint && operation.how == 1 && checkpoint->values[index].defined()
                  ? checkpoint->values[index].to(dtype)
                  : value.to(dtype);
    }
    each_rank([&](int rank) {
      note(rank, "evaluation", loss_of(model.all, operation.parameters, operation.data, rank));
    });
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
    ++errors_.open_scopes;
    Flow flow;
    {
      torch::AutoGradMode with_grad(true);
      flow = run(operation.body);
    }
    std::vector<Scope::Saved> saved = std::move(scopes_.back().saved);
    scopes_.pop_back();
    --errors_.open_scopes;
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
    errors_.begin();
    optimizer_file_.reset();
  }

  const Program& program_;
  PlainTraining training_;
  ExpectedErrors errors_;
  std::vector<Journal> journals_;
  std::array<std::vector<at::Tensor>, 3> losses_;                                // by slot and rank
  std::array<std::shared_ptr<const PlainTraining::Checkpoint>, 3> checkpoints_;  // by slot
  std::optional<PlainTraining::Moments> optimizer_file_;
  std::vector<Scope> scopes_;
};

}  // namespace

std::vector<Journal> run_plainly(const Program& program) {
  return PlainRun(program).run();
}

}  // namespace zerorun::testing
