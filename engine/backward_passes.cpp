#include "engine/backward_passes.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/activity_board.h"
#include "base/timeline.h"
#include "zero/node_pointer.h"

namespace zerorun {

using torch::autograd::Node;

// A backward of the program, for the launcher and the timeline. Not inside of Pass: clang 14 takes no
// defaults of a class that is nested in the one that is being defined.
struct RecordedBackward {
  ActivityScope activity{Activity::backward};
  TimelineBusy busy;
  TimelineSpan span{TimelineName::backward};
};

struct BackwardPasses::Pass : std::enable_shared_from_this<Pass> {
  explicit Pass(BackwardPasses* owner) : owner(owner) {}

  /// Adds a callback to the current graph task. If the task is nested, the callback arranges the same for the
  /// outer task; otherwise it ends the pass.
  void join_task();
  void join_task_around(const Node& node);
  void end();
  void fail() noexcept;

  std::mutex mutex;
  std::optional<RecordedBackward> recorded{std::in_place};
  BackwardPasses* owner;  // null after the engine is destroyed
  std::vector<int> tasks;
  std::atomic<bool> failed = false;
  std::atomic<bool> ended = false;
};

// Owned by a graph task's callback. If this object is destroyed before the callback has run, the pass has
// failed.
struct BackwardPasses::TaskEnd {
  explicit TaskEnd(std::shared_ptr<Pass> pass) : pass(std::move(pass)) {}
  ~TaskEnd() {
    if (!completed) pass->fail();
  }
  TaskEnd(const TaskEnd&) = delete;
  TaskEnd& operator=(const TaskEnd&) = delete;

  void complete() {
    completed = true;
    if (const NodePointer outer = torch::autograd::get_current_node()) {
      pass->join_task_around(*outer);
    } else {
      pass->end();
    }
  }

  std::shared_ptr<Pass> pass;
  bool completed = false;
};

// Owned by pre-hooks on nodes of an outer task. If this object is destroyed before any of the hooks has run,
// the pass has failed.
struct BackwardPasses::OuterTask {
  explicit OuterTask(std::shared_ptr<Pass> pass) : pass(std::move(pass)) {}
  ~OuterTask() {
    if (!joined && !pass->ended) pass->failed = true;
  }
  OuterTask(const OuterTask&) = delete;
  OuterTask& operator=(const OuterTask&) = delete;

  std::shared_ptr<Pass> pass;
  std::atomic<bool> joined = false;
};

struct BackwardPasses::JoinOuter : torch::autograd::FunctionPreHook {
  explicit JoinOuter(std::shared_ptr<OuterTask> outer) : outer(std::move(outer)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (!outer->joined.exchange(true)) outer->pass->join_task();
    return gradients;
  }

  std::shared_ptr<OuterTask> outer;
};

void BackwardPasses::Pass::join_task() {
  if (ended) return;
  const int task = torch::autograd::get_current_graph_task_id();
  {
    std::lock_guard lock(mutex);
    if (std::ranges::find(tasks.rbegin(), tasks.rend(), task) != tasks.rend()) return;
    tasks.push_back(task);
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::make_shared<TaskEnd>(shared_from_this())] { end->complete(); });
}

void BackwardPasses::Pass::join_task_around(const Node& node) {
  const auto outer = std::make_shared<OuterTask>(shared_from_this());
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (edge.is_valid()) edge.function->add_pre_hook(std::make_unique<JoinOuter>(outer));
  }
}

void BackwardPasses::Pass::end() {
  std::lock_guard lock(mutex);
  if (!owner || owner->pass_.get() != this) return;
  const c10::NoGradGuard no_grad;
  failed = true;  // unless the rest succeeds
  owner->reducer_->finish_backward();
  owner->end_();
  failed = false;
  ended = true;
  recorded.reset();
}

// Runs while the backward's exception is on its way to the program.
void BackwardPasses::Pass::fail() noexcept {
  std::lock_guard lock(mutex);
  recorded.reset();
  if (failed.exchange(true) || !owner || owner->pass_.get() != this) return;
  owner->fail_();
}

BackwardPasses::BackwardPasses(GradientReducer& reducer, std::function<Start()> begin,
                               std::function<void()> end, std::function<void()> fail)
    : reducer_(&reducer), begin_(std::move(begin)), end_(std::move(end)), fail_(std::move(fail)) {
  reducer.set_observer([this] { on_gradient(); });
}

BackwardPasses::~BackwardPasses() {
  reducer_->set_observer({});
  if (!pass_) return;
  std::lock_guard lock(pass_->mutex);
  pass_->owner = nullptr;
}

bool BackwardPasses::failed() const {
  return pass_ && !pass_->ended;
}

void BackwardPasses::on_gradient() {
  if (pass_ && !pass_->failed && !pass_->ended) return pass_->join_task();
  const Start start = begin_();
  pass_ = std::make_shared<Pass>(this);
  reducer_->start_backward(start.boundary, start.scale);
  pass_->join_task();
}

}  // namespace zerorun
