// Communicators of two levels over rank-threads.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/two_level/two_level_communicator.h"

namespace zerorun::testing {

/// Makes one of the ranks of `world`, `per_host` of which are on each of the hosts. A collective.
inline std::shared_ptr<Communicator> in_two_levels(const std::shared_ptr<Communicator>& world, int per_host) {
  std::vector<RankGroup> hosts(static_cast<size_t>(world->world_size() / per_host));
  std::vector<RankGroup> places(static_cast<size_t>(per_host));
  RankGroup all;
  for (int rank = 0; rank < world->world_size(); ++rank) {
    all.ranks.push_back(rank);
    hosts[rank / per_host].ranks.push_back(rank);
    places[rank % per_host].ranks.push_back(rank);
  }
  for (size_t host = 0; host < hosts.size(); ++host) hosts[host].name = "host " + std::to_string(host);
  for (size_t place = 0; place < places.size(); ++place)
    places[place].name = "place " + std::to_string(place);
  Levels levels{.host = world->split(hosts), .across = world->split(places)};
  return make_two_level_communicator(std::move(levels), std::move(all),
                                     [world](const std::string&) { return world->open_notices(); });
}

}  // namespace zerorun::testing
