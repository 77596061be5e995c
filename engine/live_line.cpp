#include "engine/live_line.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/memory_report.h"
#include "base/progress_bar.h"
#include "base/unique_fd.h"
#include "base/wait_for_ranks.h"
#include "device/dtypes.h"
#include "engine/engine.h"
#include "engine/engine_state.h"

namespace zerorun {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), pattern, arguments...);
  return text.data();
}

std::string minutes(double seconds) {
  const auto whole = static_cast<int>(std::ceil(seconds));
  return whole < 3600 ? format("%d:%02d", whole / 60, whole % 60)
                      : format("%dh%02d", whole / 3600, whole / 60 % 60);
}

// How much of a line the terminal shows. Under the launcher this process writes to a pipe.
int terminal_width() {
  constexpr int kUsual = 80;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col - 1;
  const UniqueFd terminal(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC));
  if (terminal.is_open() && ::ioctl(terminal.get(), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col - 1;
  return kUsual - 1;
}

// The FLOP/s of this rank in a product of square matrices. The last one read waits for a GPU.
double measured_peak(c10::Device device, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  const int64_t size = device.is_cpu() ? 768 : 8192;
  constexpr int kTurns = 8;
  const at::Tensor a = at::ones({size, size}, at::TensorOptions().dtype(dtype).device(device));
  double best = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto begin = std::chrono::steady_clock::now();
    at::mm(a, a).select(0, 0).select(0, 0).item();
    const double time = seconds(std::chrono::steady_clock::now() - begin);
    best = std::max(best, 2.0 * static_cast<double>(size * size * size) / time);
  }
  return best;
}

// Of the process on the CPU; on a GPU, of the model's states there.
int64_t bytes_in_use() {
  const MemoryNow memory = memory_now();
  return memory.on_device != 0 ? std::accumulate(memory.now.begin(), memory.now.end(), int64_t{0})
                               : memory.resident;
}

}  // namespace

LiveLine::LiveLine(Engine& engine, const Options& options)
    : options_(options), stays_(stdout_is_terminal()), begin_(Clock::now()) {
  const std::shared_ptr<EngineState>& state = engine.state_;
  if (options.tokens_per_step > 0) engine.set_tokens_per_step(options.tokens_per_step);
  interval_ = state->config.steps_per_print.value_or(0);
  if (state->mesh.world().rank() != 0 || (!stays_ && interval_ == 0)) return;
  state_ = state;
  first_ = state->progress.counts().global;
  const PrecisionConfig& precision = state->config.precision;
  const at::ScalarType dtype = precision.autocast ? at::kBFloat16 : scalar_type(precision.training);
  peak_ = measured_peak(state->mesh.world().device().location(), dtype);
  state->flops.count_a_step();
  waited_before_ = WaitForRanks::waited();
  begin_ = Clock::now();
}

LiveLine::~LiveLine() {
  end();
}

void LiveLine::show(const LiveStep& step) {
  if (!state_) return;
  const Clock::time_point now = Clock::now();
  if (!stays_) {
    if (step.steps % interval_ == 0) std::printf("%s\n", text_of(step, now).c_str());
  } else if (!last_shown_ || now - *last_shown_ >= kInterval || step.steps == options_.steps) {
    last_shown_ = now;
    is_open_ = true;
    const int width = terminal_width();
    std::printf("\r%-*.*s", width, width, text_of(step, now).c_str());
  }
  std::fflush(stdout);
}

void LiveLine::end() {
  if (!is_open_) return;
  is_open_ = false;
  std::printf("\n");
  std::fflush(stdout);
}

std::string LiveLine::text_of(const LiveStep& step, Clock::time_point now) const {
  const double elapsed = seconds(now - begin_);
  const auto done = static_cast<double>(std::max<int64_t>(step.steps - first_, 1));
  const bool has_tokens = options_.tokens_per_step > 0;
  const auto per_step =
      static_cast<double>(has_tokens ? options_.tokens_per_step : state_->config.batch.train_batch_size);
  std::string text = "step " + std::to_string(step.steps);
  if (options_.steps > 0) text += "/" + std::to_string(options_.steps);
  text += format("  loss %.4f", step.loss);
  if (options_.steps > 0)
    text += "  ETA " + minutes(elapsed / done * static_cast<double>(options_.steps - step.steps));
  if (step.lr && !stays_) text += format("  lr %.3e", *step.lr);
  if (step.grad_norm && !stays_) text += format("  norm %.3f", *step.grad_norm);
  text += format("  %.0f %s/s", done * per_step / elapsed, has_tokens ? "tokens" : "samples");
  text += speed_of(elapsed / done);
  text += format("  %.0f MiB", static_cast<double>(bytes_in_use()) / (1 << 20));
  const bool waits_are_seen = !state_->mesh.world().device().streams().asynchronous();
  if (waits_are_seen && state_->mesh.world().world_size() > 1)
    text += format("  %.0f %% waiting", 100 * seconds(WaitForRanks::waited() - waited_before_) / elapsed);
  return text;
}

std::string LiveLine::speed_of(double seconds_per_step) const {
  const std::optional<int64_t> counted = state_->flops.model_flops();
  if (!counted || *counted == 0) return "";
  const double speed = static_cast<double>(*counted) / seconds_per_step;
  return format("  %.1f GFLOP/s (%.0f %%)", speed / 1e9, 100 * speed / peak_);
}

}  // namespace zerorun
