// Tests the findings about network interfaces, ports and RDMA cards.
#include "doctor/network.h"

#include "base/listening.h"
#include "tests/doctor/findings.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::lines_about;
using namespace zerorun::doctor;

namespace {

const NetworkInterface kLoopback = {
    .name = "lo", .addresses = {"127.0.0.1"}, .mtu = 65536, .megabits = {}, .loopback = true};

Network with(const std::vector<NetworkInterface>& interfaces) {
  Network network;
  network.interfaces = interfaces;
  network.first_free_port = 32768;
  network.last_free_port = 60999;
  return network;
}

}  // namespace

TEST_CASE("network: interfaces with addresses, MTU and speed") {
  const Network network =
      with({kLoopback,
            {.name = "eth0", .addresses = {"10.0.0.2", "fd00::2"}, .mtu = 9000, .megabits = 25000},
            {.name = "eth1", .addresses = {"192.168.0.2"}, .mtu = 1500, .megabits = 100},
            {.name = "veth", .addresses = {"10.1.0.1"}, .mtu = 1500, .megabits = {}}});
  const std::string one_host = lines_about(judge_network(network, false), "interface");
  CHECK(one_host ==
        "ok       interface        eth0 10.0.0.2 fd00::2, MTU 9000, 25000 Mbit/s\n"
        "  ok       interface        eth1 192.168.0.2, MTU 1500, 100 Mbit/s\n"
        "  ok       interface        veth 10.1.0.1, MTU 1500\n");
  CHECK_THAT(lines_about(judge_network(network, true), "interface"),
             Contains("note     interface        eth1") && Contains("GLOO_SOCKET_IFNAME") &&
                 Contains("ok       interface        eth0"));
}

TEST_CASE("network: no interface, no loopback") {
  CHECK_THAT(lines_about(judge_network(with({kLoopback}), false), "interface"),
             StartsWith("ok ") && Contains("loopback only"));
  CHECK_THAT(lines_about(judge_network(with({kLoopback}), true), "interface"), StartsWith("problem "));
  CHECK_THAT(lines_about(judge_network(with({}), false), "interface"),
             StartsWith("problem ") && Contains("ip link set lo up"));
}

TEST_CASE("network: ports and cards") {
  Network network = with({kLoopback});
  CHECK(lines_about(judge_network(network, false), "ports") ==
        "ok       ports            port 29500 is free; the system gives out 32768 to 60999\n");
  network.last_free_port = 32900;
  CHECK_THAT(lines_about(judge_network(network, false), "ports"),
             StartsWith("note ") && Contains("ip_local_port_range"));
  network.meeting_port_free = false;
  CHECK_THAT(lines_about(judge_network(network, false), "ports"),
             StartsWith("note ") && Contains("port 29500 is in use") && Contains("--master_port"));
  network.free_port_found = false;
  CHECK_THAT(lines_about(judge_network(network, false), "ports"), StartsWith("problem "));
  network.rdma_cards = {"mlx5_0"};
  CHECK_THAT(lines_about(judge_network(network, false), "RDMA card"), Contains("mlx5_0"));
}

TEST_CASE("network: this host's interfaces are read, and a port in use is noticed") {
  const zerorun::testing::TemporaryFolder root;
  std::filesystem::create_directories(root / "sys/class/infiniband/mlx5_1");
  std::filesystem::create_directories(root / "sys/class/net/lo");
  std::filesystem::create_directories(root / "proc/sys/net/ipv4");
  root.write("sys/class/net/lo/mtu", "1234\n");
  root.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  const std::string top = (root / "").parent_path();
  Network network = read_network(top);
  CHECK(network.rdma_cards == std::vector<std::string>{"mlx5_1"});
  CHECK(network.first_free_port == 32768);
  CHECK(network.last_free_port == 60999);
  CHECK(network.free_port_found);
  const auto loopback = std::ranges::find(network.interfaces, "lo", &NetworkInterface::name);
  REQUIRE(loopback != network.interfaces.end());
  CHECK(loopback->loopback);
  CHECK(loopback->mtu == 1234);
  CHECK(std::ranges::count(loopback->addresses, "127.0.0.1") == 1);
  if (!network.meeting_port_free) return;  // another program uses the port
  const auto held = zerorun::listen_on("", kMeetingPort);
  CHECK_FALSE(read_network(top).meeting_port_free);
}
