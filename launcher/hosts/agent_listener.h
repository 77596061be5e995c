// Accepts the agents' connections to the launcher until all agents of the job have connected. Hands on the
// connections of agents that have shown the ticket and said which node they are. Owned by the Cluster, used
// on the main thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "base/listening.h"
#include "base/seal.h"
#include "launcher/console.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/node_order.h"

namespace zerorun::launcher {

struct NewAgent {
  FrameSocket socket;
  AgentHello hello;
  std::string address;  // as this host sees it
};

class AgentListener {
 public:
  /// `ticket` must outlive this object.
  AgentListener(ListeningSocket listening, const Seal& ticket, Console& console);

  int fd() const { return listening_.fd.get(); }
  int port() const { return listening_.port; }
  void append_poll_entries(std::vector<pollfd>& entries) const;
  /// Reads and answers without blocking. Returns the agents that have said who they are.
  std::vector<NewAgent> service();
  /// The number of connections that have ended without showing the ticket.
  int64_t strangers() const { return strangers_; }
  /// Closes the port and the connections that have not been handed on.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Greeting {
    AgentGreeting greeting;
    std::string address;
    std::string source;  // the same for all addresses of which one host may have many
    Clock::time_point since;
  };
  struct Greeted {
    FrameSocket socket;
    std::string address;
  };

  void accept_connections();
  /// Closes one connection that has not shown the ticket. False if all may still do so.
  bool make_room();
  void service_greetings();

  ListeningSocket listening_;
  const Seal& ticket_;
  Console& console_;
  std::list<Greeting> greetings_;  // the oldest first
  std::list<Greeted> greeted_;     // have shown the ticket; their node is unknown
  Clock::time_point accepts_again_{};
  int64_t strangers_ = 0;
};

}  // namespace zerorun::launcher
