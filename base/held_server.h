// Lets ranks of other hosts read the memory that a keeper holds, and write copies of theirs into it
// (base/held_exchange.h). Without blocking, and without a thread of its own: the keeper's loop calls it. One
// thread. SIGPIPE and SIGXFSZ must be ignored.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/greeting.h"
#include "base/held_exchange.h"
#include "base/held_memory.h"
#include "base/listening.h"
#include "base/seal.h"

namespace zerorun {

class HeldServer {
 public:
  /// `files`: of the ranks of this host, and `copies` of those of another one; must outlive this object.
  HeldServer(ListeningSocket listening, const std::vector<HeldSlots>& files,
             const std::vector<HeldSlots>& copies);

  int port() const { return listening_.port; }
  /// From now on serves those who know this token. Before the first call it serves nobody.
  void set_token(const std::string& token);
  void append_poll_entries(std::vector<pollfd>& entries) const;
  /// Does what can be done without waiting.
  void service();

 private:
  using Clock = std::chrono::steady_clock;

  /// A rank that has shown the token. It sends a request, then it gets the answer, and so on.
  struct Reader {
    UniqueFd fd;
    std::string incoming = {};  // of the request
    std::string head = {};      // of the answer, as far as it is not sent
    int file = -1;              // of the request; its next byte is at `offset`
    int64_t offset = 0;
    int64_t to_receive = 0, to_send = 0;     // bytes of the file
    HeldAnswer answer = {};                  // to what is received
    Clock::time_point moved = Clock::now();  // when bytes came or went last

    bool is_answering() const { return !head.empty() || to_send > 0; }
  };
  enum class Step { moved, waits, broken };

  void accept_connections();
  void service_greetings();
  bool serve(Reader& reader);
  Step receive_request(Reader& reader) const;
  Step receive_bytes(Reader& reader);
  Step send_answer(Reader& reader) const;
  int file_of(const HeldRequest& request) const;
  void begin(Reader& reader, const HeldRequest& request) const;
  static int64_t reserve(int file, const HeldRequest& request);

  ListeningSocket listening_;
  const std::vector<HeldSlots>&files_, &copies_;
  std::string buffer_;
  std::optional<Seal> token_;
  std::list<Greeting> greetings_;  // the oldest first
  std::list<Reader> readers_;
  Clock::time_point accepts_again_ = {};
};

}  // namespace zerorun
