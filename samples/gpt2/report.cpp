#include "samples/gpt2/report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "samples/common/text.h"

namespace samples {
namespace {

constexpr std::chrono::milliseconds kLiveInterval(100);
constexpr int kLiveWidth = 88;

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string minutes(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 3600) return format("%d:%02d", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  return format("%lldh%02d", static_cast<long long>(whole / 3600), static_cast<int>(whole / 60 % 60));
}

// Under the launcher this process writes to a pipe. The launcher sets ZERORUN_TERMINAL to 1 if its own output
// is a terminal.
bool on_terminal() {
  const char* variable = std::getenv("ZERORUN_TERMINAL");
  return variable ? std::string_view(variable) == "1" : ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace

std::string memory_table(const zerorun::BytesByCategory& bytes, double formula_bytes) {
  auto row = [](const char* name, int64_t count) {
    return format("  %-14s %16s %10.2f MiB", name, with_commas(count).c_str(),
                  static_cast<double>(count) / 0x1p20);
  };
  const auto formula = std::llround(formula_bytes);
  std::string table = "bytes on each rank\n";
  table += row("parameters", bytes.parameters) + "\n";
  table += row("gradients", bytes.gradients) + "\n";
  table += row("master", bytes.master) + "\n";
  table += row("moments", bytes.moments) + "\n";
  table += row("model states", bytes.model_states());
  table += format("   ZeRO formula %s (ratio %.3f)\n", with_commas(formula).c_str(),
                  static_cast<double>(bytes.model_states()) / formula_bytes);
  table += row("buckets", bytes.buckets) + "\n";
  table += row("buffers", bytes.buffers) + "\n";
  if (bytes.on_host > 0) table += row("on the host", bytes.on_host) + "\n";
  if (bytes.in_files > 0) table += row("in files", bytes.in_files) + "\n";
  return table;
}

std::string traffic_report(zerorun::Engine& engine, int64_t parameters, int64_t micro_steps) {
  const double ranks = engine.mesh().data().world_size();
  const double unit = (ranks - 1) / ranks * static_cast<double>(parameters * micro_steps);
  auto sent = [&](zerorun::Collective kind) { return engine.mesh().data().volume().elements(kind) / unit; };
  std::string report =
      format("sent per micro-step, in (N-1)/N x parameters: %.3f gathered, %.3f reduced\n",
             sent(zerorun::Collective::all_gather), sent(zerorun::Collective::reduce_scatter));
  const zerorun::ResidencyReport residency = engine.residency();
  if (residency.peak_resident_bytes == 0) return report;
  return report + format(
                      "partitioned parameters: at most %.2f MiB there at once; all-gathers: %lld ready, %lld "
                      "waited for; "
                      "%lld departures from the trace\n",
                      static_cast<double>(residency.peak_resident_bytes) / 0x1p20,
                      static_cast<long long>(residency.ready), static_cast<long long>(residency.waited),
                      static_cast<long long>(residency.departures));
}

void await_checkpoint(zerorun::Engine& engine) {
  constexpr std::chrono::seconds kLong(2);
  constexpr int kBarWidth = 40;
  const bool shows = engine.communicator().rank() == 0 && on_terminal();
  const auto begin = std::chrono::steady_clock::now();
  bool shown = false;
  for (zerorun::CheckpointProgress progress = engine.checkpoint_progress(); shows && progress.is_writing;
       progress = engine.checkpoint_progress()) {
    if (std::chrono::steady_clock::now() - begin > kLong) {
      const double share =
          static_cast<double>(progress.written) / static_cast<double>(std::max<int64_t>(progress.bytes, 1));
      const auto filled = static_cast<size_t>(std::min(share, 1.0) * kBarWidth);
      const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
      std::printf("\rwriting the checkpoint [%s] %3.0f %%", bar.c_str(), 100 * std::min(share, 1.0));
      std::fflush(stdout);
      shown = true;
    }
    std::this_thread::sleep_for(kLiveInterval);
  }
  if (shown) std::printf("\n");
  engine.wait_for_checkpoint();
}

Progress::Progress(int64_t first, int64_t steps, int64_t tokens_per_step,
                   std::optional<int64_t> steps_per_print)
    : first_step_(first),
      steps_(steps),
      tokens_per_step_(tokens_per_step),
      steps_per_print_(steps_per_print),
      terminal_(on_terminal()) {}

std::string Progress::line(const StepRecord& record, Clock::time_point now) const {
  const auto done = static_cast<double>(record.step + 1 - first_step_);
  const double elapsed = seconds(now - start_);
  const double rate = done * static_cast<double>(tokens_per_step_) / elapsed;
  const double remaining = elapsed / done * static_cast<double>(steps_ - record.step - 1);
  return format("step %lld/%lld  loss %.4f  lr %.3e  norm %.3f  %.0f tokens/s  ETA %s",
                static_cast<long long>(record.step + 1), static_cast<long long>(steps_), record.loss,
                record.lr, record.grad_norm, rate, minutes(remaining).c_str());
}

void Progress::step_done(const StepRecord& record) {
  const Clock::time_point now = Clock::now();
  if (!first_loss_) first_loss_ = record.loss;
  last_ = record;
  if (terminal_) {
    const bool due = !last_shown_ || now - *last_shown_ >= kLiveInterval || record.step + 1 == steps_;
    if (!due) return;
    last_shown_ = now;
    std::printf("\r%-*s", kLiveWidth, line(record, now).c_str());
  } else if (steps_per_print_ && (record.step + 1) % *steps_per_print_ == 0) {
    std::printf("%s\n", line(record, now).c_str());
  }
  std::fflush(stdout);
}

void Progress::finish() {
  if (!first_loss_) return;
  const double elapsed = seconds(Clock::now() - start_);
  const auto steps = static_cast<double>(last_.step + 1 - first_step_);
  std::printf("%s%.0f steps in %s: loss %.4f -> %.4f, %.0f tokens/s", terminal_ ? "\n" : "", steps,
              minutes(elapsed).c_str(), *first_loss_, last_.loss,
              steps * static_cast<double>(tokens_per_step_) / elapsed);
  if (last_.skipped > 0) std::printf(", %lld steps skipped", static_cast<long long>(last_.skipped));
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace samples
