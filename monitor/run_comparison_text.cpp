#include <array>
#include <cstdio>

#include "base/printable.h"
#include "monitor/run_comparison.h"
#include "monitor/step_comparison.h"

namespace zerorun {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

std::string describe(const RunRecord& run) {
  const MeshSizes& mesh = run.mesh;
  std::string text = std::to_string(run.world_size) + (run.world_size == 1 ? " rank" : " ranks");
  if (mesh.tensor > 1 || mesh.pipeline > 1 || mesh.replicate > 1)
    text += " (" + zerorun::describe(mesh) + ")";
  for (const LoggedSetting& setting : run.settings) {
    if (setting.key == "zero_optimization.stage") text += ", stage " + setting.value;
  }
  return text + ", " + run.precision + ", " + run.optimizer + ", " + run.device + ", " + run.transport +
         ", LibTorch " + run.libtorch + ", " + run.started;
}

std::string listed(const std::string& title, const std::vector<std::string>& lines) {
  std::string text = lines.empty() ? "" : title + "\n";
  for (const std::string& line : lines) text += "  " + line + "\n";
  return text;
}

std::string describe_steps(const RunComparison& comparison) {
  const bool by_bits = comparison.reasons.empty();
  std::string text =
      "steps " + std::to_string(comparison.first_step) + " to " + std::to_string(comparison.last_step);
  if (by_bits)
    return text + (comparison.has_hashes ? ", bit by bit: losses, norms, and hashes of gradients and values"
                                         : ", bit by bit: losses and norms");
  return text + ", within a relative tolerance of " + number(comparison.tolerance) + " for losses and " +
         number(kNormFactor * comparison.tolerance) + " for norms (--tolerance)";
}

}  // namespace

std::string to_text(const RunComparison& comparison, const std::string& a, const std::string& b) {
  std::string text =
      "A  " + a + ": " + describe(comparison.first) + "\nB  " + b + ": " + describe(comparison.second) + "\n";
  text += listed("settings that differ (A | B):", comparison.differences);
  text += listed("bits cannot be equal, so losses and norms are compared (A | B):", comparison.reasons);
  text += listed("note:", comparison.notes);
  text += "compared: " + describe_steps(comparison) + "\n";
  if (!comparison.parting) return printable(text + "no difference\n", "\n");
  const PartingStep& parting = *comparison.parting;
  text += parting.what == Parting::start
              ? "they differ before step " + std::to_string(parting.step + 1) + " (A | B):\n"
              : "they part at step " + std::to_string(parting.step) + " (A | B):\n";
  for (const std::string& fact : parting.facts) text += "  " + fact + "\n";
  return printable(text + "look at: " + parting.hint + "\n", "\n");
}

}  // namespace zerorun
