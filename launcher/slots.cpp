#include "launcher/slots.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr int kHighestSlot = 4095;

bool is_this_machine(std::string_view host, std::string_view hostname) {
  return host == "localhost" || host == "127.0.0.1" || host == hostname ||
         host == hostname.substr(0, hostname.find('.'));
}

[[noreturn]] void refuse(std::string_view filter, const std::string& found) {
  throw UserError("--include " + std::string(filter) + ": " + found);
}

int parse_slot(std::string_view filter, std::string_view text) {
  int slot = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
  if (error != std::errc() || end != text.data() + text.size() || slot < 0 || slot > kHighestSlot) {
    refuse(filter, "expected slots as numbers from 0 to " + std::to_string(kHighestSlot) +
                       " separated by commas, such as localhost:0,2; found '" + std::string(text) + "'");
  }
  return slot;
}

}  // namespace

std::vector<int> parse_include(std::string_view filter, std::string_view hostname) {
  if (filter.find('@') != std::string_view::npos) {
    refuse(filter, "several hosts are not offered: name slots of this machine only, such as localhost:0,2");
  }
  const size_t colon = filter.find(':');
  const std::string_view host = filter.substr(0, colon);
  if (host.empty()) refuse(filter, "no host given: write localhost:0,2");
  if (!is_this_machine(host, hostname)) {
    refuse(filter, "'" + std::string(host) + "' is not this machine (" + std::string(hostname) +
                       "), and several hosts are not offered: write localhost:0,2");
  }
  std::vector<int> slots;
  if (colon == std::string_view::npos) return slots;
  std::string_view rest = filter.substr(colon + 1);
  while (true) {
    const size_t comma = rest.find(',');
    const int slot = parse_slot(filter, rest.substr(0, comma));
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) {
      refuse(filter, "slot " + std::to_string(slot) + " is named twice");
    }
    slots.push_back(slot);
    if (comma == std::string_view::npos) return slots;
    rest.remove_prefix(comma + 1);
  }
}

void check_slots(const std::vector<int>& slots, int gpus) {
  if (gpus == 0) return;
  for (int slot : slots) {
    if (slot >= gpus) {
      throw UserError("--include: slot " + std::to_string(slot) + " does not exist: this machine has " +
                      std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") + ", numbered from 0");
    }
  }
}

}  // namespace zerorun
