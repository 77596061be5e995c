#include "launcher/hostfile.h"

#include <charconv>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/small_file.h"
#include "launcher/host_name.h"

namespace zerorun::launcher {
namespace {

constexpr std::string_view kSlots = "slots=";
constexpr size_t kMostHostfileBytes = 16 << 20;
constexpr size_t kMostHosts = 1 << 16;

}  // namespace

std::vector<Host> parse_hostfile(std::string_view text, const std::string& file) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto refuse = [&](const std::string& reason) {
      throw UserError(file + ":" + std::to_string(number) + ": " + reason);
    };
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    std::string slots;
    if (!(words >> name)) continue;
    words >> slots;
    if (!slots.starts_with(kSlots)) refuse("expected a host as `HOST slots=N`, found '" + line + "'");
    if (!is_host(name)) refuse("'" + name + "' is not the name or address of a host");
    const char* begin = slots.data() + kSlots.size();
    const char* end = slots.data() + slots.size();
    Host host{name, -1};
    const auto [last, error] = std::from_chars(begin, end, host.slots);
    if (error != std::errc() || last != end || host.slots < 0 || host.slots > kMostSlots) {
      refuse("slots: expected a whole number from 0 to " + std::to_string(kMostSlots) + ", found '" +
             std::string(begin, end) + "'");
    }
    if (!names.insert(name).second) refuse("the host " + name + " is listed twice");
    if (hosts.size() == kMostHosts) refuse("a job has at most " + std::to_string(kMostHosts) + " hosts");
    hosts.push_back(host);
  }
  if (hosts.empty()) throw UserError(file + ": no host in it: write a line `HOST slots=N` for each host");
  return hosts;
}

std::string choose_hostfile(const LaunchOptions& options, const std::string& usual) {
  if (!options.hostfile.empty() || options.this_host_alone || options.node_rank ||
      !options.rdzv_endpoint.empty())
    return options.hostfile;
  std::error_code error;
  return std::filesystem::is_regular_file(usual, error) ? usual : "";
}

std::vector<Host> read_hostfile(const std::string& file) {
  const SmallFile read = read_small_file(file, kMostHostfileBytes);
  if (!read.problem.empty()) throw UserError("--hostfile " + file + ": cannot be read: " + read.problem);
  return parse_hostfile(read.text, file);
}

}  // namespace zerorun::launcher
