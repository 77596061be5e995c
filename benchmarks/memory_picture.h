// A picture of what each rank keeps at the stages of ZeRO: one bar a stage, drawn to scale, readable on light
// and dark pages.
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

/// An SVG file's text. `title`: what was measured.
std::string memory_picture(std::span<const StageMemory> stages, const std::string& title);

}  // namespace zerorun
