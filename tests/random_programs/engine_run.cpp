#include "tests/random_programs/engine_run.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <optional>

#include "engine/gathered_parameters.h"
#include "tests/random_programs/checks.h"
#include "tests/random_programs/engines.h"
#include "tests/random_programs/expected_errors.h"

namespace zerorun::testing {
namespace {

// LibTorch's optimizers and the engine's pass over slices may round the last bit differently.
constexpr double kTolerance = 1e-4;

// Thrown to end the run before the end of the program.
struct Over {};

class EngineRun {
 public:
  EngineRun(const Program& program, std::shared_ptr<Communicator> communicator, std::filesystem::path folder,
            const Journal& expected)
      : program_(program),
        setup_(program.setup),
        communicator_(std::move(communicator)),
        folder_(std::move(folder)),
        rank_(rank_in_group(setup_, *communicator_)),
        reader_(expected, setup_.source == Source::config ? 0 : kTolerance) {}

  void run() {
    now_ = "initialize()";
    model_ = std::make_shared<Model>(program_);
    engine_ = make_engine(program_, *model_, communicator_);
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
    expect(reader_.at_end(), "the plain run went further");
  }

  const std::string& now() const { return now_; }

 private:
  bool takes_part(const Operation& operation) const {
    return operation.rank == kEverybody || operation.rank == rank_;
  }
  Engine& engine() { return engine_->get(); }
  const at::Tensor& parameter(int index) const { return model_->all[index]; }
  void compare_all() {
    for (const at::Tensor& parameter : model_->all) reader_.compare(parameter.detach().clone());
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
        GatheredParameters scope(engine(), held,
                                 operation.rank >= 0 ? std::optional(operation.rank) : std::nullopt);
        return run(operation.body);
      }
      case Kind::no_sync: {
        const auto scope = engine().no_sync();
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
        return engine().synchronize();
      case Kind::remake:
        return run_remake(operation);
      case Kind::companion:
        return run_companion(program_, operation, communicator_, folder_);
      case Kind::fork:
        return run_fork();
      case Kind::backward:
        reader_.attempt(now_,
                        [&] { run_backward(losses_[operation.slot], operation.retain, operation.how); });
        if (!operation.retain) losses_[operation.slot].reset();
        return;
      case Kind::failing_backward:
        reader_.attempt(now_, [&] { run_failing_backward(operation); });
        return;
      case Kind::resume:
        return run_resume(operation);
      case Kind::load:
        if (reader_.attempt(now_, [&] { engine().load_checkpoint(folder_, tag_of(operation)); }))
          compare_all();
        return;
      case Kind::evaluator: {
        const bool loads = reader_.attempt(now_, [&] {
          if (!engine_->last_save_failed) engine().wait_for_checkpoint();
        });
        const std::string tag = loads ? tag_of(operation) : "";
        return reader_.compare(run_evaluator(program_, operation, communicator_, folder_, tag));
      }
      default:
        run_change(operation, now_, *engine_, *model_, folder_, reader_);
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
      engine().eval();
      reader_.compare(loss_of(*model_, uses, operation.data, rank_));
      engine().train();
      return;
    }
    at::Tensor loss = loss_of(*model_, uses, operation.data, rank_);
    const bool poisoned = operation.poison == kEverybody || operation.poison == rank_;
    if (poisoned) loss = loss * std::numeric_limits<float>::infinity();
    reader_.compare(loss);
    if (operation.kind == Kind::forward) losses_[operation.slot] = loss;
  }

  void run_step() {
    const bool is_end = reader_.next_text() == kScaleAtMinimum;
    if (reader_.attempt(now_, [&] { engine().step(); })) {
      reader_.compare(c10::str("steps ", engine().global_steps(), ", applied ", engine().was_step_applied(),
                               ", skipped ", engine().skipped_steps(), ", scale ", engine().loss_scale(),
                               ", rate ", engine().get_lr()[0]));
      reader_.compare(at::scalar_tensor(engine().get_global_grad_norm(), at::kFloat));
    }
    if (is_end) throw Over();
  }

  void run_backward(const at::Tensor& loss, bool retain, int how) {
    if (how == by_engine) return engine().backward(loss, retain);
    (how == by_loss ? engine().scale(loss) : loss).backward({}, retain);
  }

  // This function calls loss.backward() at stages 2 and 3 only. At stages
  // 0 and 1 the engine would allocate separate sums at the first gradient of a loss.backward(), and the plain
  // run does not model that.
  void run_failing_backward(const Operation& operation) {
    const bool plain = fails_by_loss(operation, setup_);
    const at::Tensor loss = loss_that_fails(model_->all, operation.parameters, operation.data, rank_);
    expect_throws([&] { run_backward(loss, false, plain ? by_loss : by_engine); }, "thrown in backward",
                  "backward()");
    // Else the gradients of earlier backwards stay if this one has brought none, and if it has brought some,
    // the next call is an error.
    engine().zero_grad();
  }

  void run_access(const Operation& operation) {
    if (!takes_part(operation)) return;
    for (int index : operation.parameters) {
      const at::Tensor& target = parameter(index);
      if (operation.kind == Kind::read) {
        reader_.compare(target.detach().clone());
      } else if (operation.kind == Kind::raw_read) {
        reader_.compare(copy_raw(target));
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
      undo_flips();
      engine_ = make_engine(program_, *model_, communicator_);
      return after_making();
    }
    engine_.reset();
    run(operation.body);
    make_anew(operation.how == 2 ? nullptr : communicator_);
    after_making();
  }

  void make_anew(std::shared_ptr<Communicator> communicator, bool swaps = false) {
    engine_.reset();
    undo_flips();
    if (setup_.stage == 3) model_ = std::make_shared<Model>(program_);
    engine_ = make_engine(program_, *model_, std::move(communicator), swaps);
  }

  void undo_flips() {
    for (size_t index = 0; index < program_.parameters.size(); ++index)
      model_->all[index].requires_grad_(!program_.parameters[index].frozen);
  }

  void run_resume(const Operation& operation) {
    const auto load = [&] { engine().load_checkpoint(folder_, tag_of(operation)); };
    if (operation.how == 1 && reader_.next_text().empty()) {
      make_anew(communicator_, /*swaps=*/true);
      expect_throws(load, "other parameter groups", "load_checkpoint() with swapped groups");
    }
    make_anew(communicator_);
    reader_.attempt(now_, load);
    after_making();
  }

  void after_making() {
    for (at::Tensor& loss : losses_) loss.reset();
    compare_all();
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
  std::filesystem::path folder_;
  int rank_;
  JournalReader reader_;
  std::string now_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<ProgramEngine> engine_;
  std::array<at::Tensor, 3> losses_;
};

}  // namespace

void run_with_engine(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const std::filesystem::path& folder, const Journal& expected) {
  EngineRun run(program, communicator, folder, expected);
  try {
    run.run();
  } catch (const c10::Error& error) {
    throw Mismatch(run.now() + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Mismatch(run.now() + ": " + error.what());
  }
}

}  // namespace zerorun::testing
