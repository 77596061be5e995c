#include "tests/random_programs/engine_run.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <optional>

#include "config/config.h"
#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/random_programs/plain_run.h"
#include "tests/random_programs/plain_training.h"

namespace zerorun::testing {
namespace {

// Thrown to end the run before the end of the program.
struct Over {};

void expect(bool condition, const std::string& what) {
  if (!condition) throw Mismatch(what);
}

void expect_throws(const std::function<void()>& action, const std::string& part, const std::string& what) {
  try {
    action();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    expect(message.find(part) != std::string::npos,
           what + " threw, but nothing about \"" + part + "\": " + message);
    return;
  }
  throw Mismatch(what + " did not throw (\"" + part + "\")");
}

// Throws Mismatch unless both tensors are equal. NaNs count as equal to each other.
void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  expect(found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type(),
         what + " has another shape or type");
  const at::Tensor a = found.to(at::kDouble);
  const at::Tensor b = expected.to(at::kDouble);
  const at::Tensor same = at::logical_or(a.eq(b), at::logical_and(a.ne(a), b.ne(b)));
  if (same.all().item<bool>()) return;
  throw Mismatch(
      c10::str(what, " differs by up to ", at::where(same, 0.0, (a - b).abs()).max().item<double>()));
}

class EngineRun {
 public:
  EngineRun(const Program& program, std::shared_ptr<Communicator> communicator, const Journal& expected)
      : program_(program),
        setup_(program.setup),
        communicator_(std::move(communicator)),
        rank_(communicator_->rank()),
        expected_(expected) {}

  void run() {
    now_ = "initialize()";
    model_ = std::make_shared<Model>(program_);
    engine_.emplace(make_engine(*model_, communicator_));
    try {
      run(program_.operations);
    } catch (const Over&) {
    }
    now_ = "the end";
    torch::NoGradGuard no_grad;
    compare_all();
    engine_.reset();
    now_ = "the end, when the engine has gone";
    if (setup_.stage < 3) compare_all();
    expect(next_ == expected_.size(), "the plain run went further");
  }

  const std::string& now() const { return now_; }

 private:
  Engine make_engine(torch::nn::Module& model, std::shared_ptr<Communicator> communicator) {
    InitializeOptions options;
    options.communicator = std::move(communicator);
    options.bucket_numel = setup_.bucket_numel;
    std::vector<ParameterGroup> groups(2);
    groups[1].lr = kLearningRate / 2;
    for (size_t index = 0; index < program_.parameters.size(); ++index) {
      const Parameter& parameter = program_.parameters[index];
      if (!parameter.frozen) groups[parameter.group].parameters.push_back(model_->all[index]);
    }
    options.parameter_groups = groups;
    if (setup_.has_schedule) options.schedule = make_schedule();
    return initialize(model, parse_config(config_of(setup_), "the program", setup_.ranks), options);
  }

  Schedule make_schedule() const {
    return [throws_at = setup_.schedule_throws_at](int64_t step, int group) mutable {
      if (step == throws_at) {
        throws_at = -1;  // the next call succeeds
        throw std::runtime_error(kScheduleThrows);
      }
      return ScheduledValues(scheduled_rate(step, group));
    };
  }

  bool takes_part(const Operation& operation) const {
    return operation.rank == kEverybody || operation.rank == rank_;
  }
  const at::Tensor& parameter(int index) const { return model_->all[index]; }
  const Note& next(const std::string& what) {
    expect(next_ < expected_.size(), what + ": the plain run did not come here");
    return expected_[next_++];
  }
  void compare(const at::Tensor& found) {
    const Note& note = next("a value");
    expect(note.value.defined(), "found a value where the plain run has: " + note.what);
    expect_same(found.detach(), note.value, note.what);
  }
  void compare_all() {
    for (const at::Tensor& parameter : model_->all) compare(parameter.detach().clone());
  }

  void run(const std::vector<Operation>& operations) {
    for (const Operation& operation : operations) {
      now_ = to_text(operation);
      run(operation);
    }
  }

  void run(const Operation& operation) {
    switch (operation.kind) {
      case Kind::forward:
      case Kind::evaluate:
      case Kind::failing_forward:
        return run_forward(operation);
      case Kind::backward:
        run_backward(losses_[operation.slot], operation.retain, operation.how == 1);
        if (!operation.retain) losses_[operation.slot].reset();
        return;
      case Kind::failing_backward:
        return run_failing_backward(operation);
      case Kind::step:
        return run_step();
      case Kind::read:
      case Kind::raw_read:
      case Kind::write:
      case Kind::raw_write:
      case Kind::rank_write:
      case Kind::raw_refused:
        return run_access(operation);
      case Kind::scope: {
        std::vector<at::Tensor> held;
        for (int index : operation.parameters) held.push_back(parameter(index));
        GatheredParameters scope(*engine_, held,
                                 operation.rank >= 0 ? std::optional(operation.rank) : std::nullopt);
        return run(operation.body);
      }
      case Kind::no_sync: {
        const auto scope = engine_->no_sync();
        return run(operation.body);
      }
      case Kind::attempt:
        try {
          run(operation.body);
        } catch (const Thrown&) {
        }
        return;
      case Kind::fail:
        if (takes_part(operation)) throw Thrown("thrown by the program");
        return;
      case Kind::synchronize:
        return engine_->synchronize();
      case Kind::remake:
        return run_remake(operation);
      case Kind::companion:
        return run_companion(operation);
      case Kind::fork:
        return run_fork();
    }
  }

  void run_forward(const Operation& operation) {
    const std::vector<int> uses = uses_of(operation, rank_);
    if (operation.kind == Kind::failing_forward && takes_part(operation)) {
      try {
        fail_in_forward(model_->all, operation, rank_);
      } catch (const Thrown&) {
      } catch (const c10::Error& error) {
        const std::string message = error.what();
        expect(message.find("mat1 and mat2 shapes") != std::string::npos, "a forward threw: " + message);
      }
      return;
    }
    if (operation.kind == Kind::evaluate) {
      torch::NoGradGuard no_grad;
      engine_->eval();
      compare(loss_of(model_->all, uses, operation.data, rank_));
      engine_->train();
      return;
    }
    at::Tensor loss = loss_of(model_->all, uses, operation.data, rank_);
    const bool poisoned = operation.poison == kEverybody || operation.poison == rank_;
    if (poisoned) loss = loss * std::numeric_limits<float>::infinity();
    compare(loss);
    if (operation.kind == Kind::forward) losses_[operation.slot] = loss;
  }

  void run_step() {
    const Note& note = next("step()");
    expect(!note.value.defined(), "the plain run is elsewhere: " + note.what);
    if (note.what != "step()") {
      expect_throws([&] { engine_->step(); }, note.text, "step()");
      if (note.text == kScaleAtMinimum) throw Over();
      return;
    }
    engine_->step();
    const std::string found =
        c10::str("steps ", engine_->global_steps(), ", applied ", engine_->was_step_applied(), ", skipped ",
                 engine_->skipped_steps(), ", norm ", static_cast<float>(engine_->get_global_grad_norm()),
                 ", scale ", engine_->loss_scale(), ", rate ", engine_->get_lr()[0]);
    expect(found == note.text, "the step came to: " + found + "; expected: " + note.text);
  }

  void run_backward(const at::Tensor& loss, bool retain, bool plain) {
    if (plain) {
      engine_->scale(loss).backward({}, retain);
    } else {
      engine_->backward(loss, retain);
    }
  }

  // This function calls loss.backward() at stages 2 and 3 only. At stages
  // 0 and 1 the engine would allocate separate sums at the first gradient of a loss.backward(), and the plain
  // run does not model that.
  void run_failing_backward(const Operation& operation) {
    const bool plain = operation.how >= 3 && setup_.stage >= 2;
    const at::Tensor loss = loss_that_fails(model_->all, operation.parameters, operation.data, rank_);
    expect_throws([&] { run_backward(loss, false, plain); }, "thrown in backward", "backward()");
    // Else the gradients of earlier backwards stay if this one has brought none, and if it has brought some,
    // the next call is an error.
    engine_->zero_grad();
  }

  void run_access(const Operation& operation) {
    if (!takes_part(operation)) return;
    for (int index : operation.parameters) {
      const at::Tensor& target = parameter(index);
      if (operation.kind == Kind::read) {
        compare(target.detach().clone());
      } else if (operation.kind == Kind::raw_read) {
        compare(copy_raw(target));
      } else if (operation.kind == Kind::raw_refused) {
        expect_throws([&] { copy_raw(target); }, "GatheredParameters", "raw access");
      } else if (operation.kind == Kind::raw_write ||
                 (operation.kind == Kind::rank_write && operation.how != 0)) {
        write_raw(target, operation.data);
      } else {
        write_by_operator(target, operation.data);
      }
    }
  }

  void run_remake(const Operation& operation) {
    if (operation.how == 1) {
      engine_ = make_engine(*model_, communicator_);
      return after_making();
    }
    engine_.reset();
    run(operation.body);
    make_anew(operation.how == 2 ? nullptr : communicator_);
  }

  void make_anew(std::shared_ptr<Communicator> communicator) {
    engine_.reset();
    if (setup_.stage == 3) model_ = std::make_shared<Model>(program_);
    engine_.emplace(make_engine(*model_, std::move(communicator)));
    after_making();
  }

  void after_making() {
    for (at::Tensor& loss : losses_) loss.reset();
    compare_all();
  }

  // Runs one SGD step of one parameter with a second engine while the first engine exists.
  void run_companion(const Operation& operation) {
    Program small;
    small.setup = {.place = setup_.place, .ranks = setup_.ranks, .stage = setup_.stage};
    const bool by_itself = in_processes(setup_.place) && operation.how == 2;
    torch::nn::Module model;
    const at::Tensor weight = model.register_parameter("weight", numbers({5}, 1));
    at::Tensor sum;
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      const at::Tensor gradient = numbers({5}, operation.data + rank);
      sum = sum.defined() ? sum + gradient : gradient;
    }
    const at::Tensor expected =
        numbers({5}, 1) - sum * static_cast<float>(1.0 / setup_.ranks) * kLearningRate;
    InitializeOptions options;
    if (!by_itself) options.communicator = communicator_;
    Engine engine =
        initialize(model, parse_config(config_of(small.setup), "the companion", setup_.ranks), options);
    engine.backward((weight * numbers({5}, operation.data + rank_)).sum());
    engine.step();
    expect_same(weight.detach().clone(), expected, "the companion's parameter");
  }

  void run_fork() {
    const pid_t child = fork();
    expect(child >= 0, "fork() failed");
    if (child == 0) {
      alarm(10);
      engine_.reset();
      model_.reset();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect(status == 0, "the child ended with status " + std::to_string(status));
  }

  const Program& program_;
  const Setup& setup_;
  std::shared_ptr<Communicator> communicator_;
  int rank_;
  const Journal& expected_;
  size_t next_ = 0;
  std::string now_;
  std::shared_ptr<Model> model_;
  std::optional<Engine> engine_;
  std::array<at::Tensor, 3> losses_;
};

}  // namespace

void run_with_engine(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const Journal& expected) {
  EngineRun run(program, communicator, expected);
  try {
    run.run();
  } catch (const c10::Error& error) {
    throw Mismatch(run.now() + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Mismatch(run.now() + ": " + error.what());
  }
}

}  // namespace zerorun::testing
