#include "comm/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/rendezvous.h"

namespace zerorun {
namespace {

constexpr char kJoined[] = "zerorun/joined/";

std::string address_of(const Environment& environment) {
  return environment.master_addr + ":" + std::to_string(environment.master_port);
}

StorePointer open_store(const Environment& environment, const Deadline& deadline) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.agent_store;
  options.waitWorkers = false;
  options.timeout = deadline.remaining();
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
    if (!environment.agent_store) return store;
    // The agent's store outlives the ranks: each of its attempts needs keys of its own, as torch.distributed
    // has it.
    return c10::make_intrusive<c10d::PrefixStore>("/worker/attempt_" + environment.attempt, store);
  } catch (const std::exception& error) {
    if (options.isServer) {
      throw UserError(
          "rank 0 cannot listen on " + address_of(environment) +
          " (MASTER_ADDR, MASTER_PORT): the port is in use or the address is not this machine's; choose "
          "another --master_port, or leave it out to get a free one (" +
          first_line(error.what()) + ")");
    }
    throw CommError("rank " + std::to_string(environment.rank) + " did not reach rank 0 at " +
                    address_of(environment) + " (MASTER_ADDR, MASTER_PORT): " + first_line(error.what()));
  }
}

// Waits until every rank has opened the store, so that an error can name those that did not.
void await_all_ranks(c10d::Store& store, const Environment& environment, const std::string& word,
                     const Deadline& deadline) {
  store.set(kJoined + std::to_string(environment.rank), std::vector<uint8_t>(word.begin(), word.end()));
  std::vector<int> missing;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    try {
      store.wait({kJoined + std::to_string(rank)}, deadline.remaining());
    } catch (const std::exception&) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty())
    throw CommError(missed_deadline("rendezvous at " + address_of(environment), missing, deadline.timeout()));
}

}  // namespace

StorePointer join_store(const Environment& environment, const std::string& word, const Deadline& deadline) {
  StorePointer store = open_store(environment, deadline);
  await_all_ranks(*store, environment, word, deadline);
  return store;
}

std::vector<int> ranks_without(c10d::Store& store, int world_size, const std::string& word) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<uint8_t> brought = store.get(kJoined + std::to_string(rank));
    if (std::string(brought.begin(), brought.end()) != word) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::string> exchange_words(c10d::Store& store, const std::string& name, int rank, int world_size,
                                        const std::string& word, const Deadline& deadline) {
  auto key = [&](int other) { return name + "/" + std::to_string(other); };
  store.set(key(rank), std::vector<uint8_t>(word.begin(), word.end()));
  std::vector<std::string> words(world_size);
  std::vector<int> missing;
  for (int other = 0; other < world_size; ++other) {
    try {
      store.wait({key(other)}, deadline.remaining());
      const std::vector<uint8_t> brought = store.get(key(other));
      words[other].assign(brought.begin(), brought.end());
    } catch (const std::exception&) {
      missing.push_back(other);
    }
  }
  if (!missing.empty()) throw CommError(missed_deadline("connecting the ranks", missing, deadline.timeout()));
  return words;
}

void part_from_store(c10d::Store& store, int rank, int world_size, const Deadline& deadline) {
  auto key = [](int other) { return "zerorun/parted/" + std::to_string(other); };
  try {
    store.set(key(rank), std::vector<uint8_t>{1});
    for (int other = 1; rank == 0 && other < world_size; ++other) {
      store.wait({key(other)}, deadline.remaining());
    }
  } catch (const std::exception&) {
    // What all ranks have been told matters more.
  }
}

StorePointer part_of(const StorePointer& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>("zerorun/" + name, store);
}

std::string first_line(const char* message) {
  const std::string text = message;
  return text.substr(0, text.find('\n'));
}

}  // namespace zerorun
