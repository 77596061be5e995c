// Network interfaces, ports and RDMA network cards of this host. judge_network() is pure. Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace zerorun::doctor {

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  // numeric, without IPv6's link-local addresses
  int mtu = 0;                         // bytes
  std::optional<int> megabits;         // per second; virtual interfaces do not report it
  bool loopback = false;
};

struct Network {
  std::vector<NetworkInterface> interfaces;     // those that are up
  std::vector<std::string> rdma_cards;          // InfiniBand and RoCE
  bool meeting_port_free = true;                // kMeetingPort
  int first_free_port = 0, last_free_port = 0;  // the system's ephemeral ports; 0: not known
  bool free_port_found = true;
};

/// The port at which ranks on several hosts meet, unless --master_port names another one.
inline constexpr int kMeetingPort = 29500;

/// `root` replaces "/" in the paths of files (for tests).
Network read_network(const std::string& root = "");

Findings judge_network(const Network& network, bool several_hosts);

}  // namespace zerorun::doctor
