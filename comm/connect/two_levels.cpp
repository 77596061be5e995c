#include "comm/connect/two_levels.h"

#include <optional>
#include <utility>
#include <vector>

#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/exchange.h"
#include "comm/meeting/store_notices.h"
#include "comm/shared_memory/shared_memory_communicator.h"
#include "comm/two_level/two_level_communicator.h"

namespace zerorun {
namespace {

// Exchanges a word of each rank about its host.
std::vector<std::string> exchange_about_hosts(const char* name, const std::string& word,
                                              const Environment& environment, const StorePointer& store,
                                              const Deadline& deadline) {
  return exchange_words(*store->part("hosts"), name, environment.rank, environment.world_size, word,
                        deadline);
}

// The ranks of this rank's host if, by the launcher's variables, there are several hosts with as many ranks
// each, at least two, and consecutive numbers. Otherwise nothing, and `obstacle` is the reason.
std::optional<RanksOfHost> find_even_hosts(const Environment& environment, const StorePointer& store,
                                           const Deadline& deadline, std::string& obstacle) {
  const auto place = [](int local_rank, int local_world_size) {
    return std::to_string(local_rank) + " of " + std::to_string(local_world_size);
  };
  const std::vector<std::string> places = exchange_about_hosts(
      "places", place(environment.local_rank, environment.local_world_size), environment, store, deadline);
  const int ranks = environment.world_size;
  const int count = std::stoi(places[0].substr(places[0].rfind(' ') + 1));
  for (int rank = 0; rank < ranks && obstacle.empty(); ++rank) {
    if (places[rank] != place(rank % count, count))
      obstacle = "rank " + std::to_string(rank) + " is number " + places[rank] + " on its host, expected " +
                 place(rank % count, count);
  }
  if (obstacle.empty() && (count < 2 || ranks <= count || ranks % count != 0))
    obstacle = std::to_string(ranks) + " ranks with " + std::to_string(count) + " on the first host";
  if (!obstacle.empty()) return std::nullopt;
  return RanksOfHost{.rank = environment.rank,
                     .first = environment.rank / count * count,
                     .count = count,
                     .world_size = ranks};
}

}  // namespace

std::shared_ptr<Communicator> connect_in_two_levels(const Environment& environment, const Joined& joined,
                                                    const Deadline& deadline, std::string& obstacle) {
  const StorePointer& store = joined.store;
  const auto own = find_even_hosts(environment, store, deadline, obstacle);
  if (!own) return nullptr;
  Levels levels;
  levels.host = make_shared_memory_communicator(*own, store->part("host " + std::to_string(own->first)),
                                                joined.job, environment.timeout, deadline, obstacle);
  for (const std::string& word : exchange_about_hosts("shared", obstacle, environment, store, deadline)) {
    if (obstacle.empty()) obstacle = word;
  }
  if (!obstacle.empty()) return nullptr;
  const int place = own->rank - own->first;
  RankGroup across{.name = "ranks that are number " + std::to_string(place) + " on their hosts", .ranks = {}};
  RankGroup all;
  for (int rank = 0; rank < own->world_size; ++rank) {
    all.ranks.push_back(rank);
    if (rank % own->count == place) across.ranks.push_back(rank);
  }
  levels.across = make_gloo_communicator(environment, std::move(across), store, deadline);
  return make_two_level_communicator(std::move(levels), std::move(all), [store](const std::string& name) {
    return make_notices(store->part("all " + name), 0);
  });
}

}  // namespace zerorun
