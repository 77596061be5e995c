// Where a list of layers is cut into pipeline stages of consecutive layers. Plain arithmetic; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace zerorun {

struct PipelineCut {
  enum class By {
    bytes,    // the largest stage has as few bytes of parameters and buffers as possible
    number,   // the numbers of layers differ by at most one; earlier stages have more
    seconds,  // the slowest stage takes as little time as possible
    names,    // before the named layers
  };
  By by = By::bytes;
  std::vector<double> seconds = {};      // by seconds: of each layer (measure_layers())
  std::vector<std::string> firsts = {};  // by names: the first layers of stages 1, 2, ...
};
const char* name_of(PipelineCut::By by);

/// Divides layers of the given costs into `stages` runs of at least one layer, so that the largest sum of
/// costs is as small as possible. Returns the first layer of each stage, and the number of layers. There are
/// at least `stages` layers.
std::vector<int> cut_by_cost(std::span<const double> costs, int stages);
/// Likewise by number.
std::vector<int> cut_by_number(int layers, int stages);

}  // namespace zerorun
