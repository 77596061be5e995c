// What each rank of a host tells the others outside of collectives: what it waits for, whether it
// has failed and why, and the bell on which it sleeps. There is one board for all groups of ranks, since a
// rank may wait in one group for a rank that waits, or has failed, in another. Each rank writes its own part
// and reads the others'; every rank rings bells. The memory is shared and belongs to the caller. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace zerorun {

/// A collective, identified by its kind and its number within that kind, counted from 0.
struct Numbered {
  Collective kind = Collective::barrier;
  uint64_t number = 0;

  bool operator==(const Numbered&) const = default;
};

/// The wait of a rank for a message, or, if it sends, for room for it. `number` is counted from 1.
struct MessageWait {
  bool is_send = false;
  int sender = 0;  // an index in the group, like `receiver`
  int receiver = 0;
  uint64_t number = 0;
};

/// The wait of a rank for a collective or a message of a group. `group` is the same number on all ranks of
/// the group, and another one for each group.
struct WaitInGroup {
  uint64_t group = 0;
  Numbered which;  // if there is no `message`
  std::optional<MessageWait> message = {};
};

inline constexpr char kNoWait[] = "?";

class RankBoard {
 public:
  static size_t bytes(int world_size);
  /// Prepares bytes(world_size) zeros at `memory` for the ranks of `job`.
  static void prepare(char* memory, uint64_t job);
  /// Throws Error if the board belongs to another job, or if another process has already taken this rank.
  RankBoard(char* memory, int rank, int world_size, uint64_t job);

  int world_size() const { return world_size_; }

  /// Records what this rank waits for, with its words, so that other ranks can name it in their error
  /// messages. The words of a message are all in `label`. After a failed wait the record stays.
  void say_waiting(const WaitInGroup& wait, std::string_view label, std::string_view reason);
  void say_waits_no_more();
  std::optional<WaitInGroup> waiting(int rank) const;
  /// The words of what the rank waits for; kNoWait if it waits for nothing.
  std::string words_of_wait(int rank) const;

  /// Records that this rank's wait has failed, with the error. Other ranks then do not report this rank's
  /// exit as the cause of their own failures.
  void say_failed(std::string_view error);
  bool has_failed(int rank) const;
  std::string failure(int rank) const;
  /// Records that this rank cannot go on, so that no rank waits any more, whatever it waits for.
  void announce_failure(std::string_view error);
  /// The rank that has announced its failure; -1: none.
  int announcer() const;

  /// Records that several threads of this rank use its communicators. While one of them waits, another one
  /// may start the collective that other ranks wait for.
  void say_threaded();
  bool is_threaded(int rank) const;

  /// A counter that changes when an event occurs that this rank may wait for. Read it before you check the
  /// condition, and pass the value to sleep().
  uint32_t bell() const;
  /// Returns when bell() differs from `bell`, or after `limit`. Polls for up to `spin` before it sleeps.
  void sleep(uint32_t bell, std::chrono::microseconds spin, std::chrono::milliseconds limit);
  void ring(int rank);
  /// Wakes other threads of this rank.
  void ring_own() { ring(rank_); }

 private:
  struct Header;
  struct Rank;

  Rank& part(int rank) const;

  char* memory_;
  int rank_;
  int world_size_;
};

/// Copies as much of `text` as fits, and a 0.
template <size_t kSize>
void store_text(char (&place)[kSize], std::string_view text) {
  const size_t length = text.size() < kSize ? text.size() : kSize - 1;
  text.copy(place, length);
  place[length] = 0;
}

template <size_t kSize>
std::string load_text(const char (&place)[kSize]) {
  const std::string_view text(place, kSize);
  return std::string(text.substr(0, text.find('\0')));
}

}  // namespace zerorun
