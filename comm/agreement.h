// What one rank has to say heard by all: texts, and errors that all ranks then throw alike.
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

/// What `action` throws, as a text that travels; empty: nothing.
template <typename Action>
std::string failure_of(const Action& action);
/// Throws what failure_of() has caught on a rank (-1: where ranks need not be told apart): UserError as
/// such, all else as TrainingError.
void throw_failure(const std::string& failure, int rank);

/// Runs `action` on each rank. What it throws on any of them all throw: that of the first. A collective.
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
