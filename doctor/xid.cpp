#include "doctor/xid.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace zerorun::doctor {
namespace {

// Kinds that programs cause: they say nothing about the GPU.
constexpr std::array<int, 5> kOfPrograms = {13, 31, 43, 45, 68};

// Each read of /dev/kmsg gives one record; EPIPE means that records were overwritten meanwhile.
std::optional<std::string> kernel_log(const std::string& path) {
  const UniqueFd log(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.is_open()) return std::nullopt;
  std::string text;
  std::array<char, 8192> record;  // the longest record of the kernel
  while (true) {
    const ssize_t size = ::read(log.get(), record.data(), record.size());
    if (size > 0) text.append(record.data(), size);
    if (size == 0 || (size < 0 && errno != EPIPE && errno != EINTR)) break;
  }
  return text;
}

// Parses "... NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
std::optional<Xid> xid_in(const std::string& line) {
  constexpr std::string_view kStart = "NVRM: Xid (PCI:";
  const size_t start = line.find(kStart);
  if (start == std::string::npos) return std::nullopt;
  const size_t from = start + kStart.size();
  const size_t to = line.find("): ", from);
  if (to == std::string::npos) return std::nullopt;
  Xid xid = {.address = line.substr(from, to - from), .number = 0, .text = ""};
  std::istringstream rest(line.substr(to + 3));
  if (!(rest >> xid.number)) return std::nullopt;
  for (std::string part; std::getline(rest, part, ',');) {
    const size_t word = part.find_first_not_of(' ');
    if (word == std::string::npos) continue;
    part = part.substr(word);
    if (part.starts_with("pid=") || part.starts_with("name=")) continue;
    xid.text += (xid.text.empty() ? "" : ", ") + part;
  }
  return xid;
}

}  // namespace

std::optional<std::vector<Xid>> read_xids(const std::string& root) {
  const std::optional<std::string> log = kernel_log(root + "/dev/kmsg");
  if (!log) return std::nullopt;
  std::vector<Xid> xids;
  std::istringstream lines(*log);
  for (std::string line; std::getline(lines, line);) {
    if (std::optional<Xid> xid = xid_in(line)) xids.push_back(std::move(*xid));
  }
  return xids;
}

Findings judge_xids(const std::vector<Xid>& xids) {
  std::map<std::pair<std::string, int>, std::vector<const Xid*>> kinds;
  for (const Xid& xid : xids) kinds[{xid.address, xid.number}].push_back(&xid);
  Findings findings;
  for (const auto& [kind, all] : kinds) {
    const bool by_program = std::ranges::count(kOfPrograms, kind.second) > 0;
    const std::string times = all.size() == 1 ? "" : std::to_string(all.size()) + " times, ";
    const std::string last = all.back()->text.empty() ? "" : ": " + all.back()->text;
    findings.push_back({by_program ? Verdict::note : Verdict::problem, "GPU error",
                        "Xid " + std::to_string(kind.second) + " of PCI " + kind.first + " (" + times +
                            "since the machine started)" + last,
                        by_program
                            ? "usually a program's mistake, not the GPU's"
                            : "NVIDIA's list of Xids says what to do; most need a reset of the GPU or a "
                              "restart of the machine"});
  }
  return findings;
}

}  // namespace zerorun::doctor
