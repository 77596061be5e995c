// An agent and the launcher prove to each other that they know the job's ticket, a secret text, before they
// accept any message: each answers the other's random number with a code that only a process with the ticket
// can compute. Nothing is encrypted.
//
//   agent -> launcher   kGreeting, 16 random bytes
//   launcher -> agent   16 random bytes, code of both numbers
//   agent -> launcher   another code of both numbers; then frames (frame_socket.h)
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/seal.h"
#include "base/unique_fd.h"

namespace zerorun::launcher {

/// A secret of 128 bits that no process outside of the job can guess.
std::string random_token();

/// The launcher's side of one connection. Without blocking; one thread.
class AgentGreeting {
 public:
  using Clock = std::chrono::steady_clock;

  /// `ticket` must outlive this object.
  AgentGreeting(UniqueFd fd, const Seal& ticket);

  /// Reads and answers. Returns false once the connection is of no use: closed, too slow, or without the
  /// ticket.
  bool service();
  /// True once the agent has shown that it knows the ticket.
  bool is_done() const { return stage_ == Stage::done; }
  /// The connection. The agent's greeting and its code have been read from it, and nothing after them.
  UniqueFd take();
  int fd() const { return fd_.get(); }

 private:
  enum class Stage { greeting, code, done };
  bool answer_greeting();

  UniqueFd fd_;
  const Seal& ticket_;
  Clock::time_point deadline_;
  Stage stage_ = Stage::greeting;
  std::string incoming_, numbers_;
};

/// The agent's side: connects to the first of `addresses` where a launcher with this ticket listens on
/// `port`. Tries again until `deadline`, and while `is_wanted` returns true. Throws Error naming the
/// addresses, what was found there, and the remedy. `tell_of_wait`, unless it is empty, gets the same text,
/// without an end, once after 5 s.
UniqueFd connect_to_launcher(const std::vector<std::string>& addresses, int port, const Seal& ticket,
                             std::chrono::steady_clock::time_point deadline,
                             const std::function<bool()>& is_wanted,
                             const std::function<void(const std::string&)>& tell_of_wait = {});

}  // namespace zerorun::launcher
