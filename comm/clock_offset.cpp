#include "comm/clock_offset.h"

#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "base/small_file.h"
#include "base/timeline_ring.h"
#include "comm/agreement.h"

namespace zerorun {
namespace {

constexpr int kExchanges = 100;
constexpr char kLabel[] = "the clocks of hosts";

int64_t now() {
  return static_cast<int64_t>(monotonic_ns());
}

// Of the rank whose clock is compared with rank 0's.
ClockOffset ask(Communicator& world) {
  ClockOffset best;
  const at::Tensor time = at::zeros({1}, at::kLong);
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    const int64_t asked = now();
    world.send(time, 0, kLabel)->wait();
    world.receive(time, 0, kLabel)->wait();
    const int64_t answered = now();
    const int64_t round_trip = answered - asked;
    if (exchange > 0 && round_trip >= best.round_trip_ns) continue;
    best = {time.const_data_ptr<int64_t>()[0] - (asked + round_trip / 2), round_trip};
  }
  return best;
}

void answer(Communicator& world, int other) {
  const at::Tensor time = at::zeros({1}, at::kLong);
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    world.receive(time, other, kLabel)->wait();
    time.mutable_data_ptr<int64_t>()[0] = now();
    world.send(time, other, kLabel)->wait();
  }
}

}  // namespace

std::string machine_of_clock() {
  std::array<char, 256> text{};
  ::gethostname(text.data(), text.size() - 1);
  std::string machine = text.data();
  const std::string boot = read_small_file("/proc/sys/kernel/random/boot_id", 256).text.substr(0, 8);
  if (!boot.empty()) machine += ", boot " + boot;
  text = {};
  if (::readlink("/proc/self/ns/time", text.data(), text.size() - 1) > 0)
    machine += std::string(", ") + text.data();
  return machine;
}

ClockOffset measure_clock_offset(Communicator& world, const std::string& machine) {
  const std::vector<std::string> machines = exchange_texts(machine, world, kLabel);
  std::string own;
  for (int rank = 1; rank < world.world_size(); ++rank) {
    const std::string& its = machines[static_cast<size_t>(rank)];
    if (std::ranges::find(machines, its) != machines.begin() + rank)
      continue;  // another rank's turn, or rank 0's
    if (world.rank() == 0) answer(world, rank);
    if (world.rank() != rank) continue;
    const ClockOffset measured = ask(world);
    own = std::to_string(measured.offset_ns) + ' ' + std::to_string(measured.round_trip_ns);
  }
  if (std::ranges::count(machines, machines.front()) == std::ssize(machines)) return {};
  const std::vector<std::string> measured = exchange_texts(own, world, kLabel);
  const auto first = std::ranges::find(machines, machine) - machines.begin();
  ClockOffset offset;
  std::istringstream(measured[static_cast<size_t>(first)]) >> offset.offset_ns >> offset.round_trip_ns;
  return offset;
}

}  // namespace zerorun
