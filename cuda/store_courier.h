// Calls the ranks' store for the watchdog, in a thread of its own. If rank 0, which hosts the store, hangs, a
// call blocks until the store's own timeout, but the watchdog must continue to check collectives. Owned by
// the watchdog. The functions of the courier pass messages to its thread, and return the answers to earlier
// messages. Functions with a `patience` block for at most that time; the others do not block.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/meeting/wait_board.h"

namespace zerorun {

class StoreCourier {
 public:
  /// Starts the thread, which sleeps while it has no messages.
  StoreCourier(std::shared_ptr<const WaitBoard> wait_board, int world_size);
  ~StoreCourier();
  StoreCourier(const StoreCourier&) = delete;
  StoreCourier& operator=(const StoreCourier&) = delete;

  // These functions correspond to WaitBoard's. A newer message replaces an older one that has not been sent
  // yet.

  void publish(std::vector<PendingCollective> waiting);
  void post_for_all(std::string text);
  /// ask_posted() requests the text of post_for_all(). take_posted() returns it once, after it has arrived.
  void ask_posted();
  std::optional<std::string> take_posted();

  /// Sends this rank's pending messages, and returns the collectives that all ranks have published. Returns
  /// nothing if the store does not answer within `patience`.
  std::optional<PendingCollectives> read_all(std::chrono::milliseconds patience);

  /// Waits until all messages are sent and answered. Returns false if that takes longer than `patience`.
  bool drain(std::chrono::milliseconds patience);

  /// Ends the thread after it has sent all messages. If a call to the store blocks it for longer than
  /// `patience`, the thread is detached; it shares ownership of everything that it uses.
  void stop(std::chrono::milliseconds patience = std::chrono::seconds(1));

 private:
  struct Mailbox;

  static void run(const std::shared_ptr<Mailbox>& mailbox, const WaitBoard& wait_board, int world_size);

  const std::shared_ptr<Mailbox> mailbox_;
  std::thread thread_;
};

}  // namespace zerorun
