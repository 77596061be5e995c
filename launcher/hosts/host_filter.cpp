#include "launcher/hosts/host_filter.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

// The slots that a filter names, by host. An empty set means all slots of the host.
using Named = std::map<std::string, std::set<int>, std::less<>>;

class FilterParser {
 public:
  FilterParser(const char* option, std::string_view filter, const std::vector<Host>& pool)
      : option_(option), filter_(filter), pool_(pool) {}

  Named parse() const {
    Named named;
    for_each_part(filter_, '@', [&](std::string_view part) {
      const size_t colon = part.find(':');
      const Host& host = find_host(part.substr(0, colon));
      std::set<int>& slots = named[host.name];
      if (colon == std::string_view::npos) return;
      for_each_part(part.substr(colon + 1), ',',
                    [&](std::string_view slot) { slots.insert(parse_slot(host, slot)); });
    });
    return named;
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw UserError(std::string(option_) + " " + std::string(filter_) + ": " + reason);
  }

 private:
  template <typename Function>
  static void for_each_part(std::string_view text, char separator, const Function& function) {
    for (size_t end = 0; end != std::string_view::npos; text.remove_prefix(end + 1)) {
      end = text.find(separator);
      function(text.substr(0, end));
      if (end == std::string_view::npos) return;
    }
  }

  const Host& find_host(std::string_view name) const {
    if (name.empty()) refuse("no host given: write HOST or HOST:0,2, and @ between hosts");
    const auto host = std::ranges::find(pool_, name, &Host::name);
    if (host != pool_.end()) return *host;
    std::string known;
    for (const Host& one : pool_) known += (known.empty() ? "" : ", ") + one.name;
    refuse("the host '" + std::string(name) + "' is not among those of the job: " + known);
  }

  int parse_slot(const Host& host, std::string_view text) const {
    const std::string found(text);
    while (text.starts_with(' ')) text.remove_prefix(1);
    int slot = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
    if (error != std::errc() || end != text.data() + text.size() || slot < 0) {
      refuse("expected slots as numbers separated by commas, such as " + host.name + ":0,2; found '" + found +
             "'");
    }
    if (slot >= host.slots) {
      refuse("slot " + std::to_string(slot) + " of " + host.name + " does not exist: it has " +
             std::to_string(host.slots) + ", numbered from 0");
    }
    return slot;
  }

  const char* option_;
  std::string_view filter_;
  const std::vector<Host>& pool_;
};

std::vector<int> all_slots(int count) {
  std::vector<int> slots(count);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

}  // namespace

std::vector<Node> include_slots(const std::vector<Host>& pool, std::string_view filter) {
  const FilterParser parser("--include", filter, pool);
  const Named named = parser.parse();
  std::vector<Node> nodes;
  for (const Host& host : pool) {
    const auto found = named.find(host.name);
    if (found == named.end()) continue;
    if (host.slots == 0) parser.refuse("the host " + host.name + " has no slots");
    const std::set<int>& slots = found->second;
    nodes.push_back(
        {host.name, slots.empty() ? all_slots(host.slots) : std::vector(slots.begin(), slots.end())});
  }
  return nodes;
}

std::vector<Node> exclude_slots(const std::vector<Host>& pool, std::string_view filter) {
  const FilterParser parser("--exclude", filter, pool);
  const Named named = parser.parse();
  std::vector<Node> nodes;
  for (const Host& host : pool) {
    Node node{host.name, all_slots(host.slots)};
    if (const auto found = named.find(host.name); found != named.end()) {
      const std::set<int>& slots = found->second;
      std::erase_if(node.slots, [&](int slot) { return slots.empty() || slots.contains(slot); });
    }
    if (!node.slots.empty()) nodes.push_back(node);
  }
  if (nodes.empty()) parser.refuse("no slot is left to run a rank on");
  return nodes;
}

std::vector<Node> first_slots(const std::vector<Host>& pool, std::optional<int> nodes,
                              std::optional<int> per_node) {
  std::vector<Node> selected;
  for (const Host& host : pool) {
    if (nodes && static_cast<int>(selected.size()) == *nodes) break;
    if (host.slots == 0) continue;
    if (per_node && *per_node > host.slots) {
      throw UserError("--num_gpus " + std::to_string(*per_node) + ": the host " + host.name + " has only " +
                      std::to_string(host.slots) + (host.slots == 1 ? " slot" : " slots"));
    }
    selected.push_back({host.name, all_slots(per_node.value_or(host.slots))});
  }
  if (selected.empty()) throw UserError("--hostfile: no host has a slot");
  if (nodes && static_cast<int>(selected.size()) < *nodes) {
    throw UserError("--num_nodes " + std::to_string(*nodes) + ": there are only " +
                    std::to_string(selected.size()) + " hosts with slots");
  }
  return selected;
}

}  // namespace zerorun::launcher
