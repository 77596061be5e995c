#include "doctor/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "base/listening.h"

namespace zerorun::doctor {
namespace {

constexpr int kGigabitInMegabits = 1000;  // megabits per second

std::optional<int> number_in_file(const std::string& path) {
  int number = 0;
  if (!(std::ifstream(path) >> number) || number < 0) return std::nullopt;
  return number;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  std::ranges::sort(names);
  return names;
}

std::string numeric(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&six)) ::inet_ntop(AF_INET6, &six, text.data(), text.size());
  }
  return text.data();
}

std::vector<NetworkInterface> read_interfaces(const std::string& root) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = numeric(entry->ifa_addr);
    if (address.empty()) continue;
    auto place = std::ranges::find(interfaces, entry->ifa_name, &NetworkInterface::name);
    if (place == interfaces.end()) {
      const std::string folder = root + "/sys/class/net/" + entry->ifa_name;
      interfaces.push_back({.name = entry->ifa_name,
                            .addresses = {},
                            .mtu = number_in_file(folder + "/mtu").value_or(0),
                            .megabits = number_in_file(folder + "/speed"),
                            .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
      place = interfaces.end() - 1;
    }
    place->addresses.push_back(address);
  }
  return interfaces;
}

bool can_listen_on(int port) {
  try {
    listen_on("", port);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

Finding judge_interface(const NetworkInterface& interface, bool several_hosts) {
  std::string text = interface.name;
  for (const std::string& address : interface.addresses) text += " " + address;
  text += ", MTU " + std::to_string(interface.mtu);
  if (interface.megabits) text += ", " + std::to_string(*interface.megabits) + " Mbit/s";
  if (several_hosts && interface.megabits && *interface.megabits < kGigabitInMegabits)
    return {Verdict::note, "interface", text, "too slow to train over; GLOO_SOCKET_IFNAME names another one"};
  return {Verdict::ok, "interface", text};
}

Finding judge_ports(const Network& network) {
  if (!network.free_port_found) {
    return {Verdict::problem, "ports", "the system gives out no free port",
            "find out with `ss -tan` which processes hold them, and widen net.ipv4.ip_local_port_range"};
  }
  const std::string number = std::to_string(kMeetingPort);
  const int count = network.last_free_port - network.first_free_port + 1;
  const std::string range = network.first_free_port == 0
                                ? ""
                                : "; the system gives out " + std::to_string(network.first_free_port) +
                                      " to " + std::to_string(network.last_free_port);
  if (!network.meeting_port_free) {
    return {Verdict::note, "ports", "port " + number + " is in use" + range,
            "a job on several hosts needs another --master_port"};
  }
  if (network.first_free_port != 0 && count < 1000)
    return {Verdict::note, "ports", "port " + number + " is free" + range,
            "widen net.ipv4.ip_local_port_range"};
  return {Verdict::ok, "ports", "port " + number + " is free" + range};
}

}  // namespace

Network read_network(const std::string& root) {
  Network network;
  network.interfaces = read_interfaces(root);
  network.rdma_cards = names_in(root + "/sys/class/infiniband");
  network.meeting_port_free = can_listen_on(kMeetingPort);
  network.free_port_found = can_listen_on(0);
  std::ifstream(root + "/proc/sys/net/ipv4/ip_local_port_range") >> network.first_free_port >>
      network.last_free_port;
  return network;
}

Findings judge_network(const Network& network, bool several_hosts) {
  Findings findings;
  for (const NetworkInterface& interface : network.interfaces) {
    if (!interface.loopback) findings.push_back(judge_interface(interface, several_hosts));
  }
  if (std::ranges::none_of(network.interfaces, &NetworkInterface::loopback)) {
    findings.push_back({Verdict::problem, "interface", "no loopback interface is up",
                        "ip link set lo up: ranks of one host meet at 127.0.0.1"});
  }
  if (findings.empty())
    findings.push_back({several_hosts ? Verdict::problem : Verdict::ok, "interface", "loopback only",
                        several_hosts ? "other hosts cannot be reached: bring a network interface up" : ""});
  for (const std::string& card : network.rdma_cards) findings.push_back({Verdict::ok, "RDMA card", card});
  findings.push_back(judge_ports(network));
  return findings;
}

}  // namespace zerorun::doctor
