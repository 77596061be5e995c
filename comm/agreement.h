// Makes texts and errors of one rank known to all ranks, which then all throw alike.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace zerorun {

/// Each rank's text, on every rank. A collective.
std::vector<std::string> exchange_texts(const std::string& text, Communicator& communicator,
                                        const std::string& label);

/// The error that `action` throws, as a text to send; empty: none.
template <typename Action>
std::string failure_of(const Action& action);
/// Throws the error that failure_of() has caught on rank `rank` (-1: without naming a rank): a UserError as
/// UserError, anything else as TrainingError.
void throw_failure(const std::string& failure, int rank);

/// Runs `action` on each rank. If it throws on some ranks, all ranks throw the error of the first of them.
/// A collective.
template <typename Action>
void on_all_ranks(Communicator& communicator, const std::string& label, const Action& action);

// ---

namespace agreement {
inline constexpr char kUsers = 'u';
inline constexpr char kOther = '-';
}  // namespace agreement

template <typename Action>
std::string failure_of(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return agreement::kUsers + std::string(error.what());
  } catch (const std::exception& error) {
    return agreement::kOther + std::string(error.what());
  }
  return "";
}

template <typename Action>
void on_all_ranks(Communicator& communicator, const std::string& label, const Action& action) {
  const std::vector<std::string> failures = exchange_texts(failure_of(action), communicator, label);
  for (int rank = 0; rank < communicator.world_size(); ++rank)
    throw_failure(failures[rank], communicator.world_size() > 1 ? rank : -1);
}

}  // namespace zerorun
