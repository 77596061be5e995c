// An agent and the launcher prove to each other that they know the job's ticket, a secret text
// (base/greeting.h). Frames follow (frame_socket.h).
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/greeting.h"
#include "base/seal.h"
#include "base/unique_fd.h"

namespace zerorun::launcher {

/// A secret of 128 bits that no process outside of the job can guess.
std::string random_token();
/// Whether `text` has the form of one.
bool is_token(const std::string& text);

/// The launcher's side of one connection. Without blocking; one thread.
class AgentGreeting : public Greeting {
 public:
  /// `ticket` must outlive this object.
  AgentGreeting(UniqueFd fd, const Seal& ticket);
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
