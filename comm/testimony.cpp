#include "comm/testimony.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <sstream>
#include <thread>

#include "comm/deadline.h"

namespace zerorun {
namespace {

constexpr char kToldToAll[] = "zerorun/told";
constexpr std::chrono::milliseconds kPatience(500);

std::string key(int rank) {
  return "zerorun/waiting/" + std::to_string(rank);
}

// Two lines a statement.
std::vector<uint8_t> encoded(const std::vector<Statement>& statements) {
  std::string text;
  for (const Statement& statement : statements) text += statement.agreed + "\n" + statement.words + "\n";
  return {text.begin(), text.end()};
}

std::vector<Statement> decoded(const std::vector<uint8_t>& bytes) {
  std::istringstream lines(std::string(bytes.begin(), bytes.end()));
  std::vector<Statement> statements;
  for (Statement one; std::getline(lines, one.agreed) && std::getline(lines, one.words);) {
    statements.push_back(one);
  }
  return statements;
}

bool contains(const std::vector<Statement>& statements, const Statement& mine) {
  return std::ranges::any_of(statements, [&](const auto& other) { return other.agreed == mine.agreed; });
}

// Says what `rank` waits for, and finds the first of `ranks` that waits for something else.
std::optional<std::string> compare(c10d::Store& store, int rank, const Statement& mine,
                                   const std::vector<int>& ranks) {
  try {
    store.set(key(rank), encoded({mine}));
    const Deadline deadline(kPatience);
    for (int other : ranks) {
      store.wait({key(other)}, deadline.remaining());
      const std::vector<Statement> theirs = decoded(store.get(key(other)));
      if (theirs.empty() || contains(theirs, mine)) continue;
      return describe_disagreement(rank, mine.words, other, theirs.front().words);
    }
  } catch (const std::exception&) {
    // The rank has nothing to say, or the store has gone with rank 0.
  }
  return std::nullopt;
}

}  // namespace

Statement statement_of(const CollectiveCall& call, int64_t numel) {
  return {std::string(name_of(call.kind)) + " of " + call.label + ", " + std::to_string(numel) + " elements",
          describe(call)};
}

std::optional<std::string> Testimony::disagreement(const CollectiveCall& call,
                                                   const std::vector<int>& ranks) const {
  const Statement mine = statement_of(call, call.input.numel());
  auto found =
      start_talk([store = store_, rank = rank_, mine, ranks] { return compare(*store, rank, mine, ranks); });
  if (found.wait_for(2 * kPatience) != std::future_status::ready) return std::nullopt;
  std::optional<std::string> result = found.get();
  if (result && rank_ == 0) std::this_thread::sleep_for(kTimeToRead);
  return result;
}

void Testimony::state(const std::vector<Statement>& waiting) const {
  try {
    store_->set(key(rank_), encoded(waiting));
  } catch (const std::exception&) {
    // Whoever asks finds that the store has gone.
  }
}

Statements Testimony::statements(int world_size) const {
  std::vector<std::vector<Statement>> all(world_size);
  try {
    for (int rank = 0; rank < world_size; ++rank) {
      if (rank != rank_ && store_->check({key(rank)})) all[rank] = decoded(store_->get(key(rank)));
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return all;
}

void Testimony::tell_all(const std::string& text) const {
  try {
    store_->set(kToldToAll, std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {
    // As above.
  }
}

std::string Testimony::told_to_all() const {
  try {
    if (!store_->check({kToldToAll})) return "";
    const std::vector<uint8_t> bytes = store_->get(kToldToAll);
    return {bytes.begin(), bytes.end()};
  } catch (const std::exception&) {
    return "";
  }
}

std::string explain_missed(int rank, const Statement& mine, const Statements& all,
                           std::chrono::milliseconds timeout) {
  if (!all) {
    return missed_end(mine.words, timeout) +
           ", and rank 0, which keeps the store of all ranks, has probably ended";
  }
  std::vector<int> silent;
  std::optional<int> elsewhere;
  for (int other = 0; other < static_cast<int>(all->size()); ++other) {
    if (other == rank) continue;
    if ((*all)[other].empty()) {
      silent.push_back(other);
    } else if (!elsewhere && !contains((*all)[other], mine)) {
      elsewhere = other;
    }
  }
  if (!silent.empty()) return missed_deadline(mine.words, silent, timeout);
  if (elsewhere) {
    return describe_disagreement(rank, mine.words, *elsewhere, (*all)[*elsewhere].front().words);
  }
  return missed_end(mine.words, timeout) +
         ", though all ranks take part: a larger --timeout is for transfers that take that long, "
         "NCCL_DEBUG=INFO tells what NCCL does";
}

std::string explain_missed_in_silence(const Statement& mine, std::chrono::milliseconds timeout) {
  return missed_end(mine.words, timeout) +
         ", and rank 0, which keeps the store of all ranks, does not answer: it stands still or cannot be "
         "reached";
}

}  // namespace zerorun
