// Reads the memory that the keeper of another host holds, and writes copies into it (base/held_exchange.h).
// Waits with deadlines; any threads, one after another.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "base/held_exchange.h"
#include "base/held_memory.h"
#include "base/seal.h"
#include "base/unique_fd.h"

namespace zerorun {

/// How long a rank waits for a keeper.
struct HeldPatience {
  /// To connect. A keeper answers within a round trip, and learns a new token just before the ranks start.
  std::chrono::milliseconds connect{5000};
  /// For the next bytes of an answer.
  std::chrono::milliseconds read{20'000};
};

class HeldClient {
 public:
  /// Connects with the first read. `token`: of this attempt.
  HeldClient(HeldKeeper keeper, const std::string& token, HeldPatience patience = HeldPatience());

  /// All calls throw CommError naming host and address, also all later ones, once the keeper has not
  /// answered. `rank`, `slot`: as in HeldRequest.

  /// Reads from a file; returns how many bytes: fewer than wanted at the file's end.
  int64_t read(int rank, int slot, std::span<std::byte> into, int64_t offset);
  /// Writes into a copy.
  void write(int rank, int slot, std::span<const std::byte> bytes, int64_t offset);
  /// Takes memory for a copy in advance; 0 bytes: frees it. Throws UserError if the host does not give it.
  void reserve(int rank, int slot, int64_t bytes);
  /// Until the next read.
  void disconnect();

 private:
  void connect();
  void send(const HeldRequest& request);
  int64_t receive_answer(const HeldRequest& request);
  template <typename Action>
  auto attempt(const Action& action);

  const HeldKeeper keeper_;
  const Seal token_;
  const HeldPatience patience_;
  std::mutex mutex_;
  UniqueFd socket_;
  std::string failure_;  // of an earlier call
};

/// One memory file of a rank.
struct HeldSlot {
  int descriptor = -1;           // if it is on this host; must stay open
  HeldClient* keeper = nullptr;  // else of its host
  int rank = 0, slot = 0;        // there, as in HeldRequest

  /// Reads; returns how many bytes, or a negative error number. Throws as HeldClient does.
  int64_t read(std::span<std::byte> into, int64_t offset) const;
};

}  // namespace zerorun
