// Draws the memory of model states on a rank at each ZeRO stage: one bar per stage, to scale, readable on
// light and dark pages.
#pragma once

#include <span>
#include <string>

namespace zerorun {

/// Bytes on a rank.
struct StageMemory {
  int stage;
  double parameters;
  double gradients;
  double optimizer_states;

  double total() const { return parameters + gradients + optimizer_states; }
};

/// Returns the text of an SVG file. `title` describes the measurement.
std::string memory_picture(std::span<const StageMemory> stages, const std::string& title);

}  // namespace zerorun
