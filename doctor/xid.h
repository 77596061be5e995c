// Xids: the errors of GPUs that NVIDIA's kernel module writes into the kernel's log. judge_xids() is pure.
// Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace zerorun::doctor {

struct Xid {
  std::string address;  // PCI address of the GPU without the function, "0000:18:00"
  int number = 0;       // NVIDIA's number of the kind of error
  std::string text;     // "GPU has fallen off the bus."

  bool operator==(const Xid&) const = default;
};

/// The Xids since the machine started; absent if the log (/dev/kmsg) may not be read. `root` replaces "/"
/// (for tests).
std::optional<std::vector<Xid>> read_xids(const std::string& root = "");

/// A line for each kind of error of each GPU.
Findings judge_xids(const std::vector<Xid>& xids);

}  // namespace zerorun::doctor
