#include "benchmarks/memory_picture.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>

namespace zerorun {
namespace {

constexpr double kWidth = 760, kLeft = 80, kBarsWidth = 590, kTop = 62, kRow = 40, kBar = 24;

struct Part {
  const char* name;
  const char* colour;
  double StageMemory::*bytes;
};

// Colour-blind readers can distinguish this blue, orange and green, and all three are visible on light and
// dark pages.
constexpr std::array kParts = {Part{"parameters", "#4c8bd6", &StageMemory::parameters},
                               Part{"gradients", "#e08a2e", &StageMemory::gradients},
                               Part{"optimizer states", "#3aa17e", &StageMemory::optimizer_states}};

std::string text(double x, double y, const std::string& words) {
  std::ostringstream out;
  out << "<text x=\"" << x << "\" y=\"" << y << "\">" << words << "</text>\n";
  return out.str();
}

std::string bar(double x, double y, double width, double height, const char* colour) {
  std::ostringstream out;
  out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height
      << "\" fill=\"" << colour << "\"/>\n";
  return out.str();
}

std::string in_mb(double bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(0) << bytes / 1e6 << " MB";
  return out.str();
}

}  // namespace

std::string memory_picture(std::span<const StageMemory> stages, const std::string& title) {
  double largest = 1;
  for (const StageMemory& stage : stages) largest = std::max(largest, stage.total());
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "
      << kWidth << ' ' << kTop + kRow * static_cast<double>(stages.size())
      << "\" font-family=\"sans-serif\" font-size=\"14\" fill=\"#7f8790\">\n"
      << text(0, 16, title);
  double x = kLeft;
  for (const Part& part : kParts) {
    out << bar(x, 31, 12, 12, part.colour) << text(x + 18, 42, part.name);
    x += 150;
  }
  double y = kTop;
  for (const StageMemory& stage : stages) {
    out << text(0, y + 17, "stage " + std::to_string(stage.stage));
    double begin = kLeft;
    for (const Part& part : kParts) {
      const double width = kBarsWidth * stage.*part.bytes / largest;
      out << bar(begin, y, width, kBar, part.colour);
      begin += width;
    }
    out << text(begin + 8, y + 17, in_mb(stage.total()));
    y += kRow;
  }
  out << "</svg>\n";
  return out.str();
}

}  // namespace zerorun
