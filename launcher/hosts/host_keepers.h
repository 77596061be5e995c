// The launcher's side of the keepers of held memory (keeper.h): one for each host of the job, over all
// attempts to run it. Owned by run_attempts(); used on the main thread.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/seal.h"
#include "launcher/console.h"
#include "launcher/hosts/agent_listener.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/node_order.h"

namespace zerorun::launcher {

class HostKeepers {
 public:
  /// Of the hosts `nodes`, whose ranks hold the state after each step whose number `every` divides.
  HostKeepers(std::vector<Node> nodes, int every, Console& console);
  /// Ends all keepers.
  ~HostKeepers();
  HostKeepers(const HostKeepers&) = delete;
  HostKeepers& operator=(const HostKeepers&) = delete;

  void append_poll_entries(std::vector<pollfd>& entries) const;
  /// Reads and answers without blocking.
  void service();

  /// What an agent of this node is told. From now on only a keeper that this agent starts may take the place
  /// of the one that is there.
  KeeperOrder order_for(int node);
  /// Whether the node's keeper is connected. `tag`: of the one that the agent has started; empty: it has
  /// found the one that was there.
  bool is_ready(int node, const std::string& tag) const;
  /// From now on keepers let ranks read that know this token.
  void tell_token(const std::string& token);
  /// How the node's ranks find the memory of all ranks (held_memory.h). Empty if a host has none.
  std::string text_for(int node);
  /// The process of the node's keeper.
  std::optional<pid_t> pid_of(int node) const;
  /// Ends all keepers, and waits a moment until they have. The next attempt starts others.
  void end();

 private:
  struct Keeper {
    std::optional<FrameSocket> socket;
    KeeperHello hello;
    std::string address;  // as this host sees it
    std::string awaited;  // the tag of the one that an agent may have started since
  };
  /// Has not said yet what it holds.
  struct Newcomer {
    FrameSocket socket;
    int node;
    std::string address;
  };
  void tell_lost(int node);

  bool takes(Newcomer& newcomer);
  std::string address_for(int reader, int node) const;

  const std::vector<Node> nodes_;
  const int every_;
  Console& console_;
  const std::string ticket_text_;
  const Seal ticket_;
  AgentListener listener_;
  std::list<Newcomer> newcomers_;
  std::vector<Keeper> keepers_;  // by node
};

}  // namespace zerorun::launcher
