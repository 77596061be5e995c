// The two ends of a connection prove to each other that they know a secret text before they accept any
// message: each answers the other's random number with a code that only a process with the secret can
// compute. Nothing is encrypted.
//
//   client -> server   words.hello, 16 random bytes
//   server -> client   16 random bytes, code of both numbers
//   client -> server   another code of both numbers; then messages
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/seal.h"
#include "base/unique_fd.h"

namespace zerorun {

/// What tells one kind of connection from others. `server` and `client` go into the codes.
struct GreetingWords {
  std::string_view hello, server, client;
};

/// So many random bytes of the system. Throws Error.
std::string random_bytes(size_t size);

/// The server's side of one connection. Without blocking; one thread.
class Greeting {
 public:
  using Clock = std::chrono::steady_clock;

  /// `secret` and `words` must outlive this object.
  Greeting(UniqueFd fd, const Seal& secret, const GreetingWords& words);

  /// Reads and answers. Returns false once the connection is of no use: closed, too slow, or without the
  /// secret.
  bool service();
  /// True once the client has shown that it knows the secret.
  bool is_done() const { return stage_ == Stage::done; }
  /// The connection. The client's greeting and its code have been read from it, and nothing after them.
  UniqueFd take();
  int fd() const { return fd_.get(); }

 private:
  enum class Stage { greeting, code, done };
  bool answer_greeting();

  UniqueFd fd_;
  const Seal* secret_;
  const GreetingWords* words_;
  Clock::time_point deadline_;
  Stage stage_ = Stage::greeting;
  std::string incoming_, numbers_;
};

/// The client's side; blocks. False if the server does not know the secret or does not answer in time.
bool greet(int fd, const Seal& secret, const GreetingWords& words,
           std::chrono::steady_clock::time_point deadline);

/// How long a greeting may take.
inline constexpr std::chrono::seconds kGreetingPatience(5);

}  // namespace zerorun
