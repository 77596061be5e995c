// Network interfaces, ports and network cards that read memory themselves. Reading and judging are apart:
// judging is pure. Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace zerorun {

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  // numeric, without link-local ones of IPv6
  int mtu = 0;                         // bytes
  std::optional<int> megabits;         // speed per second; virtual interfaces do not tell
  bool loopback = false;
};

struct Network {
  std::vector<NetworkInterface> interfaces;     // those that are up
  std::vector<std::string> rdma_cards;          // InfiniBand and RoCE
  bool meeting_port_free = true;                // kMeetingPort
  int first_free_port = 0, last_free_port = 0;  // from which the system takes ports; 0: not told
  bool free_port_found = true;
};

/// Where ranks of several hosts meet unless --master_port says otherwise.
inline constexpr int kMeetingPort = 29500;

/// `root` replaces "/" for what is read from files (for tests).
Network read_network(const std::string& root = "");

Findings judge_network(const Network& network, bool several_hosts);

}  // namespace zerorun
