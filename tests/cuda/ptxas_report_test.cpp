// Tests the report that ptxas wrote when the kernels were compiled. It must have every kernel for every
// architecture, and no kernel may spill registers to memory.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Kernel {
  std::string name;  // the mangled C++ name
  std::string architecture;
  int spilled;
  int registers;
};

std::vector<Kernel> kernels_in(const std::string& report) {
  std::vector<Kernel> kernels;
  std::istringstream lines(report);
  const std::regex entry("Compiling entry function '(\\S+)' for '(\\S+)'");
  const std::regex spills("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  const std::regex used("Used (\\d+) registers");
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, entry)) kernels.push_back({match[1], match[2], -1, -1});
    if (kernels.empty()) continue;
    if (std::regex_search(line, match, spills))
      kernels.back().spilled = std::stoi(match[1]) + std::stoi(match[2]);
    if (std::regex_search(line, match, used)) kernels.back().registers = std::stoi(match[1]);
  }
  return kernels;
}

// Returns the names of the functions that the source declares as kernels.
std::set<std::string> kernels_in_source(const std::string& source) {
  std::set<std::string> names;
  const std::regex kernel("__global__ void\\s+(?:__launch_bounds__\\(\\w+\\)\\s+)?(\\w+)\\(");
  for (std::sregex_iterator at(source.begin(), source.end(), kernel), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

}  // namespace

TEST_CASE("ptxas report: no kernel of any architecture spills") {
  const std::vector<Kernel> kernels = kernels_in(read(ZERORUN_BINARY_DIR "/ptxas_report.txt"));
  INFO("the report is written when kernels.cu is compiled");
  REQUIRE_FALSE(kernels.empty());
  for (const Kernel& kernel : kernels) {
    INFO(kernel.name << " for " << kernel.architecture);
    CHECK(kernel.spilled == 0);
    CHECK(kernel.registers > 0);
  }
}

TEST_CASE("ptxas report: every kernel in the source is there for every architecture") {
  const std::set<std::string> wanted = kernels_in_source(read(ZERORUN_SOURCE_DIR "/cuda/kernels.cu"));
  REQUIRE(wanted.size() >= 6);
  std::map<std::string, std::set<std::string>> names;  // mangled names of kernels by architecture
  for (const Kernel& kernel : kernels_in(read(ZERORUN_BINARY_DIR "/ptxas_report.txt"))) {
    names[kernel.architecture].insert(kernel.name);
  }
  for (const char* architecture : {"sm_80", "sm_90", "sm_100"}) {
    INFO(architecture);
    CHECK(names[architecture].size() == names["sm_80"].size());
    for (const std::string& kernel : wanted) {
      INFO(kernel);
      const std::string mangled = std::to_string(kernel.size()) + kernel;
      const auto& there = names[architecture];
      CHECK(std::any_of(there.begin(), there.end(),
                        [&](const std::string& name) { return name.find(mangled) != std::string::npos; }));
    }
  }
}
