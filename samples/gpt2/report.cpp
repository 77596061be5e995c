#include "samples/gpt2/report.h"

#include <cmath>
#include <cstdio>

#include "samples/common/text.h"

namespace samples {
namespace {

std::string minutes(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 3600) return format("%d:%02d", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  return format("%lldh%02d", static_cast<long long>(whole / 3600), static_cast<int>(whole / 60 % 60));
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
  zerorun::Communicator& shards = engine.mesh().shards();
  const double ranks = shards.world_size();
  const double unit = (ranks - 1) / ranks * static_cast<double>(parameters * micro_steps);
  auto sent = [&](zerorun::Collective kind) { return shards.volume().elements(kind) / unit; };
  std::string report =
      format("sent per micro-step, in (N-1)/N x parameters: %.3f gathered, %.3f reduced\n",
             sent(zerorun::Collective::all_gather), sent(zerorun::Collective::reduce_scatter));
  if (const double bytes = shards.volume().elements_of_messages(); bytes > 0)
    report += format("gradients in 8 bits, likewise: %.3f bytes\n", bytes / unit);
  const zerorun::ResidencyReport residency = engine.residency();
  if (residency.casts > 0)
    report += format("copies by autocast: %lld made, at most %.2f MiB there at once\n",
                     static_cast<long long>(residency.casts),
                     static_cast<double>(residency.peak_cast_bytes) / 0x1p20);
  if (residency.peak_resident_bytes == 0) return report;
  return report + format(
                      "partitioned parameters: at most %.2f MiB there at once; all-gathers: %lld ready, %lld "
                      "waited for; %lld departures from the trace\n",
                      static_cast<double>(residency.peak_resident_bytes) / 0x1p20,
                      static_cast<long long>(residency.ready), static_cast<long long>(residency.waited),
                      static_cast<long long>(residency.departures));
}

std::string summary(const StepRecord& first, const StepRecord& last, int64_t tokens_per_step,
                    double seconds) {
  const auto steps = static_cast<double>(last.step + 1 - first.step);
  std::string text =
      format("%.0f steps in %s: loss %.4f -> %.4f, %.0f tokens/s", steps, minutes(seconds).c_str(),
             first.loss, last.loss, steps * static_cast<double>(tokens_per_step) / seconds);
  if (last.skipped > 0) text += format(", %lld steps skipped", static_cast<long long>(last.skipped));
  return text + "\n";
}

}  // namespace samples
