// A TCP connection that carries frames (a type and a payload) between the launcher and an agent or a keeper
// (keeper.h), without blocking. Owned by one of the two ends; one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace zerorun::launcher {

enum class FrameType : uint8_t {
  hello,       // agent: which node it is
  refusal,     // launcher: why it does not take the agent, or the keeper
  order,       // launcher: what to run (NodeOrder)
  open,        // launcher: all agents have connected; node 0 opens the port where the ranks meet
  port,        // agent of node 0: the port where the ranks meet
  start,       // launcher: the address where the ranks meet; start them
  output,      // agent: bytes that a rank has printed
  output_end,  // agent: a rank will print no more
  read,        // launcher: how many bytes of output it has taken
  notice,      // agent: a line to print
  failure,     // agent: its first rank that failed
  stopped,     // agent: a rank that a signal or a debugger has stopped
  trouble,     // agent: why it cannot start its ranks
  end,         // launcher: end the ranks, or the keeper
  over,        // agent: all ranks have ended
  again,       // launcher: the job is started again, join it again (JoinedLaunchers)
  finished,    // launcher: the job is not started again
  keeper,      // agent: the tag of its host's keeper; keeper: what it holds
  token,       // launcher: whom a keeper lets read from now on
  heartbeat,   // both, every kHeartbeat
};

struct Frame {
  FrameType type;
  std::string payload;
};

class FrameSocket {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes over a connected socket.
  explicit FrameSocket(UniqueFd fd);

  void send(FrameType type, std::string_view payload = {});
  /// Writes and reads as much as possible.
  void service();
  /// The next frame that has arrived.
  std::optional<Frame> next();

  /// True once the other end has closed the connection, or broken it.
  bool is_closed() const { return !fd_.is_open(); }
  size_t unsent() const { return outgoing_.size() - sent_; }
  void append_poll_entry(std::vector<pollfd>& entries) const;
  Clock::time_point last_heard() const { return last_heard_; }
  /// Measures the other end's silence from now on. Call after this process itself was stopped for a while.
  void forgive_silence() { last_heard_ = Clock::now(); }
  /// Whether the other host's kernel has acknowledged all that was sent.
  bool is_acknowledged() const;
  /// This host's address in the connection, in numbers; empty if it cannot be found.
  std::string own_address() const;
  void close() { fd_.reset(); }

 private:
  void write_some();
  void read_some();

  UniqueFd fd_;
  std::string incoming_, outgoing_;
  size_t sent_ = 0;  // bytes of outgoing_ that are written to the socket
  size_t taken_ =
      0;  // bytes of incoming_ that next() has returned; removed with the next read, not one by one
  Clock::time_point last_heard_ = Clock::now();
};

}  // namespace zerorun::launcher
