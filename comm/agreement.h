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

/// Runs `action`. If it throws, returns the error as a text, which throw_failure() can turn back into an
/// error on any rank. Otherwise returns an empty text.
template <typename Action>
std::string failure_of(const Action& action);
/// Throws the error that failure_of() returned on rank `rank`: a UserError as UserError, any other error as
/// TrainingError. The message names the rank unless it is -1. Does nothing if `failure` is empty.
void throw_failure(const std::string& failure, int rank);

/// Runs `action` on each rank. If it throws on one or more ranks, every rank throws the error of the lowest
/// of these ranks. A collective.
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
