#include "comm/store.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "base/hexadecimal.h"
#include "base/listening.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random_bits.h"
#include "base/route.h"
#include "comm/environment.h"
#include "comm/exchange.h"

namespace zerorun {
namespace {

// The key under which rank 0 publishes the job that the store serves. Its value has no seal.
constexpr char kJobKey[] = "zerorun/job";

std::string address_of(const Environment& environment) {
  return environment.master_addr + ":" + std::to_string(environment.master_port);
}

std::string keeper_of(const Environment& environment) {
  return environment.agent_store ? "torchrun's agent" : "rank 0";
}

Seal seal_of(const Environment& environment) {
  return Seal(environment.job + "\n" + std::to_string(environment.world_size));
}

std::string this_process() {
  std::array<char, 256> host{};
  const bool known = gethostname(host.data(), host.size() - 1) == 0;
  return "process " + std::to_string(getpid()) + " of " + (known ? host.data() : "an unknown host");
}

// The state that a process keeps for a job until the process ends. A forked child has a copy of the state,
// but does not own what the state refers to.
struct Membership {
  ~Membership() {
    // The store's threads do not exist in a forked child, so joining them there would hang.
    if (process != getpid()) keep_forever(std::make_shared<Connection>(std::move(keeper)));
  }

  std::mutex mutex;
  pid_t process = getpid();
  Connection keeper;  // on rank 0: the store's server
  bool has_rank = false;
  int connects = 0;
};

Membership& membership_in(const Environment& environment, const Seal& seal) {
  static std::mutex mutex;
  static std::map<std::string, Membership> all;
  const std::string name = address_of(environment) + " " + environment.attempt + " " +
                           in_hexadecimal(seal.job()) + " " + std::to_string(environment.rank) + " " +
                           std::to_string(getpid());
  const std::lock_guard lock(mutex);
  return all[name];
}

// Tells open_connection() whether this process is to host the store. Only rank 0 hosts it.
struct Hosting {
  bool hosts = false;
  UniqueFd listening;  // socket to listen on; not open if this process already listens on the port
};

// Listens only on the master address if all ranks are on this host, so that other hosts cannot reach the
// store. If the program has already called init_process_group(), this process listens on the port already,
// and rank 0 shares the store of that process group.
Hosting host_as_rank_0(const Environment& environment) {
  UniqueFd socket = take_inherited_socket(environment.master_port);
  if (!socket.is_open() && !this_process_listens_on(environment.master_port)) {
    socket = listen_on(environment.one_host ? environment.master_addr : "", environment.master_port).fd;
  }
  return {true, std::move(socket)};
}

// `text` is the job that the store serves, as read from kJobKey; `own` is the job of this rank.
void check_job(const std::string& text, const std::string& own, const Environment& environment) {
  if (text == own) return;
  throw UserError("rank " + std::to_string(environment.rank) +
                  " has connected to the store of another job at " + address_of(environment) +
                  " (MASTER_ADDR, MASTER_PORT): give each job its own port (--master_port, or leave it out "
                  "to get a free one), and all ranks of a job the same WORLD_SIZE and ZERORUN_JOB");
}

// c10d's error does not say that the name is unknown or that no interface leads there. Throws CommError that
// says so. The name of rank 0's host may become known late, when a scheduler starts that host: the other
// ranks warn after some seconds and try again until the deadline. Rank 0 knows its own name, or has a short
// pause of its name service.
void check_route(const Environment& environment, const Deadline& deadline) {
  constexpr std::chrono::seconds kPatience(5);
  constexpr std::chrono::milliseconds kPause(200);
  const auto soon = std::min(Deadline::Clock::now() + kPatience, deadline.end());
  const auto end = environment.rank == 0 ? soon : deadline.end();
  for (bool warned = false;; std::this_thread::sleep_for(kPause)) {
    try {
      route_to(environment.master_addr);
      return;
    } catch (const CommError& error) {
      const std::string text =
          std::string(error.what()) +
          (is_loopback(environment.master_addr)
               ? "; switch on this host's loopback interface (ip link set lo up), or give another address of "
                 "rank 0's host (--master_addr)"
               : "; give an address of rank 0's host that this host knows (--master_addr)");
      const auto next = Deadline::Clock::now() + kPause;
      if (next >= end) throw CommError(text);
      if (next < soon || warned) continue;
      warned = true;
      log_warning("rank " + std::to_string(environment.rank) + " tries again until the deadline: " + text);
    }
  }
}

using Opened = std::pair<Connection, std::string>;

// Only rank 0 calls this. With multiTenant, c10d keeps one server for each port of a process, and the server
// lives as long as any TCPStore uses it. So the program's init_process_group() and this rank use the same
// server, whichever of them comes first.
Opened host_store(const Environment& environment, const c10d::TCPStoreOptions& options,
                  const std::string& own) {
  auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  return {store, store->c10d::Store::compareSet(kJobKey, std::string(), own)};
}

// Tries again if the store ends before rank 0 has published the job there. Such a store belongs to a process
// group that rank 0's program has created on the same port and destroyed again.
Opened reach_store(const Environment& environment, c10d::TCPStoreOptions options, const std::string& own,
                   const Deadline& deadline) {
  constexpr std::chrono::milliseconds kPause(20);
  for (;;) {
    try {
      options.timeout = deadline.remaining();
      auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
      if (environment.agent_store) return {store, own};  // torchrun's agent does not publish kJobKey
      store->wait({kJobKey}, deadline.remaining());
      return {store, store->get_to_str(kJobKey)};
    } catch (const c10::DistNetworkError&) {
      if (Deadline::Clock::now() + kPause >= deadline.end()) throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Opens a connection to the store. Only this function and those that it calls use the store without a
// JobStore.
Connection open_connection(const Environment& environment, const Seal& seal, Hosting hosting,
                           const Deadline& deadline) {
  check_route(environment, deadline);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.waitWorkers = false;
  options.timeout = deadline.remaining();
  options.isServer = options.multiTenant = hosting.hosts;
  const bool shares = hosting.hosts && !hosting.listening.is_open();
  if (hosting.listening.is_open()) options.masterListenFd = hosting.listening.release();
  const std::string own = in_hexadecimal(seal.job());
  auto opening = run_detached([environment, options, own, deadline]() -> Opened {
    return options.isServer ? host_store(environment, options, own)
                            : reach_store(environment, options, own, deadline);
  });
  const std::string what = "rank " + std::to_string(environment.rank) + " did not reach " +
                           keeper_of(environment) + " at " + address_of(environment) +
                           " (MASTER_ADDR, MASTER_PORT)";
  if (opening.wait_until(deadline.end() + kTimeToAnswer) != std::future_status::ready) {
    throw CommError(what + ", which does not answer: " + missed_end("connecting", deadline.timeout()));
  }
  const auto opened = opening.get();
  if (!opened.value && shares) {
    throw UserError("rank 0 cannot listen on " + address_of(environment) +
                    " (MASTER_ADDR, MASTER_PORT): the port is in use by this process itself, but not with a "
                    "store that rank 0 can share: let init_process_group() make its store, give a TCPStore "
                    "multi_tenant=True, or choose another --master_port for one of them (" +
                    opened.failure + ")");
  }
  if (!opened.value) throw CommError(what + ": " + opened.failure);
  check_job(opened.value->second, own, environment);
  return opened.value->first;
}

// Returns the value with which `process` claims its rank. It is unique to each call.
std::string claim_of(const std::string& process) {
  return in_hexadecimal(random_bits()) + " " + process;
}

// Throws in the second process that claims a rank. The first process is not affected.
void take_rank(const JobStore& job, const Environment& environment, const Deadline& deadline) {
  const std::string rank = "rank " + std::to_string(environment.rank);
  const std::string mine = claim_of(this_process());
  const std::string first = job.claim(rank, mine, deadline);
  if (first == mine) return;
  throw UserError(rank + " is taken at " + address_of(environment) +
                  " (MASTER_ADDR, MASTER_PORT): " + first.substr(first.find(' ') + 1) + " has connected as " +
                  rank + " before, and this is " + this_process() +
                  ": give each process its own RANK and each job its own port (--master_port, or leave it "
                  "out to get a free one)");
}

std::string prefix_of(const Environment& environment, const Seal& seal) {
  // torchrun's agent keeps its store across restarts of the ranks, so each attempt needs its own keys, as in
  // torch.distributed.
  const std::string attempt = environment.agent_store ? "/worker/attempt_" + environment.attempt + "/" : "";
  return attempt + "zerorun/" + in_hexadecimal(seal.job()) + "/";
}

JobStore store_over(const Connection& connection, const Environment& environment) {
  const Seal seal = seal_of(environment);
  return {connection, keeper_of(environment), seal, prefix_of(environment, seal)};
}

std::string purpose_of(const Environment& environment) {
  return "rendezvous at " + address_of(environment);
}

}  // namespace

Joined join_store(const Environment& environment, const std::string& word, const Deadline& deadline) {
  const Seal seal = seal_of(environment);
  Membership& membership = membership_in(environment, seal);
  Connection connection;
  int number = 0;
  {
    const std::lock_guard lock(membership.mutex);
    number = membership.connects++;
    if (environment.rank == 0 && !environment.agent_store && !membership.keeper) {
      membership.keeper = open_connection(environment, seal, host_as_rank_0(environment), deadline);
    }
    connection = open_connection(environment, seal, {}, deadline);
    if (!membership.has_rank) {
      claim_rank(connection, environment, deadline);
      membership.has_rank = true;
    }
  }
  return join_over(connection, environment, number, word, deadline);
}

void claim_rank(const Connection& connection, const Environment& environment, const Deadline& deadline) {
  told_why(purpose_of(environment), deadline,
           [&] { take_rank(store_over(connection, environment), environment, deadline); });
}

Joined join_over(const Connection& connection, const Environment& environment, int number,
                 const std::string& word, const Deadline& deadline) {
  const uint64_t job = seal_of(environment).job();
  Joined joined{.store = store_over(connection, environment).part("connect " + std::to_string(number)),
                .words = {},
                .job = sip_hash(job, static_cast<uint64_t>(number), "connect")};
  joined.words = exchange_words(*joined.store, "joined", environment.rank, environment.world_size, word,
                                deadline, purpose_of(environment));
  return joined;
}

}  // namespace zerorun
