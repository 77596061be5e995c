// Talks to the ranks' store for the watchdog, in a thread of its own: if rank 0, which hosts the store,
// hangs, a call to the store blocks until the store's own timeout, and the watchdog must not miss the
// collectives' timeouts meanwhile.
// Owned by the watchdog, whose threads leave messages and read the answers to earlier ones. Functions with a
// `patience` block for that long at most; the others do not block.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/wait_board.h"

namespace zerorun {

class StoreCourier {
 public:
  /// Starts the thread, which sleeps while it has nothing to do.
  StoreCourier(std::shared_ptr<const WaitBoard> wait_board, int world_size);
  ~StoreCourier();
  StoreCourier(const StoreCourier&) = delete;
  StoreCourier& operator=(const StoreCourier&) = delete;

  // As in WaitBoard. A newer message replaces an older one that has not been sent yet.

  void publish(std::vector<PendingCollective> waiting);
  void post_for_all(std::string text);
  /// Requests the text of post_for_all(); take_posted() returns it, once, after it has arrived.
  void ask_posted();
  std::optional<std::string> take_posted();

  /// What all ranks have published, read after this rank's last message has been sent. None if the store does
  /// not answer within `patience`.
  std::optional<PendingCollectives> read_all(std::chrono::milliseconds patience);

  /// Waits until all messages are sent and answered; false if that takes longer than `patience`.
  bool drain(std::chrono::milliseconds patience);

  /// Ends the thread when all messages are sent. If a call to the store blocks it for longer than `patience`,
  /// the thread is detached: it shares ownership of all that it uses.
  void stop(std::chrono::milliseconds patience = std::chrono::seconds(1));

 private:
  struct Mailbox;

  static void run(const std::shared_ptr<Mailbox>& mailbox, const WaitBoard& wait_board, int world_size);

  const std::shared_ptr<Mailbox> mailbox_;
  std::thread thread_;
};

}  // namespace zerorun
