// Talks to the ranks' store for the watchdog, in a thread of its own: where rank 0, which keeps the store,
// stands still, a call to the store lasts to a deadline of its own, and whoever looks after those of
// collectives must not be in one.
// Owned by the watchdog, whose threads leave messages and read the answers to earlier ones; they wait for as
// long as they say, and not at all where they say nothing.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/testimony.h"

namespace zerorun {

class StoreCourier {
 public:
  /// Its thread begins, and sleeps while there is nothing to do.
  StoreCourier(std::shared_ptr<const Testimony> testimony, int world_size);
  ~StoreCourier();
  StoreCourier(const StoreCourier&) = delete;
  StoreCourier& operator=(const StoreCourier&) = delete;

  // As in Testimony. What is said again before it was told is told once.

  void state(std::vector<Statement> waiting);
  void tell_all(std::string text);
  /// Fetches what is told to all; take_told() gives it out, once, when it is there.
  void ask_told();
  std::optional<std::string> take_told();

  /// What all ranks say after this rank's last statement has been told. None if the store does not answer
  /// within `patience`.
  std::optional<Statements> statements(std::chrono::milliseconds patience);

  /// Whether all that has been left here is told and answered, within `patience`.
  bool settle(std::chrono::milliseconds patience);

  /// Ends the thread when all is told. One that the store does not let go within `patience` is left to
  /// itself: it keeps alive what it uses.
  void stop(std::chrono::milliseconds patience = std::chrono::seconds(1));

 private:
  struct Mailbox;

  static void run(const std::shared_ptr<Mailbox>& mailbox, const Testimony& testimony, int world_size);

  const std::shared_ptr<Mailbox> mailbox_;
  std::thread thread_;
};

}  // namespace zerorun
