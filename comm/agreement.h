// Exchanges texts between ranks, so that an error on one rank becomes the same error on all ranks.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace zerorun {

/// Returns the texts of all ranks, by rank. A collective.
std::vector<std::string> exchange_texts(const std::string& text, Communicator& communicator,
                                        const std::string& label);

/// An error of one rank, to be thrown on others; or none.
struct Failure {
  enum class Kind : char { none = 0, user = 'u', other = '-' };

  explicit operator bool() const { return kind != Kind::none; }
  /// As one text: empty for no failure, else the kind's letter, then `text`.
  std::string encoded() const { return *this ? static_cast<char>(kind) + text : ""; }
  static Failure decoded(const std::string& encoded);
  /// The same, with the rank before the text, if there are several ranks.
  Failure on_rank(int rank, int world_size) const;
  /// Throws UserError if the error was one, else TrainingError. Does nothing if there is no failure.
  void raise() const;

  Kind kind = Kind::none;
  std::string text = {};
};

/// Runs `action`. Returns the error that it throws.
template <typename Action>
Failure failure_of(const Action& action);

/// Throws the failure of the lowest rank that has one. `failures`: by rank, encoded.
void raise_first(const std::vector<std::string>& failures);

/// Runs `action` on each rank. If it throws on one or more ranks, every rank throws the error of the lowest
/// of these ranks. A collective.
template <typename Action>
void on_all_ranks(Communicator& communicator, const std::string& label, const Action& action);

// ---

template <typename Action>
Failure failure_of(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return {Failure::Kind::user, error.what()};
  } catch (const std::exception& error) {
    return {Failure::Kind::other, error.what()};
  }
  return {};
}

template <typename Action>
void on_all_ranks(Communicator& communicator, const std::string& label, const Action& action) {
  raise_first(exchange_texts(failure_of(action).encoded(), communicator, label));
}

}  // namespace zerorun
