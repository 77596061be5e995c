#include "comm/gloo/order_watch.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

namespace zerorun {
namespace {

constexpr std::chrono::milliseconds kPatience(1000);  // how long a wait must have lasted
constexpr std::chrono::milliseconds kLimit(500);      // of a request to the store

// How often the watch looks. With many ranks it looks less often, because one store serves them all.
std::chrono::milliseconds look_of(size_t ranks) {
  return std::chrono::milliseconds(std::max<size_t>(500, 5 * ranks));
}

std::string key(int rank) {
  return "order/" + std::to_string(rank);
}

// Whether the wait of `waiting` needs the rank `other`. In a broadcast a rank that is not the root needs only
// the root.
bool needs(const OrderWatch::Statement& waiting, int other) {
  return waiting.kind != Collective::broadcast || waiting.rank == waiting.root || other == waiting.root;
}

bool has_started(const OrderWatch::Statement& rank, const OrderWatch::Statement& what) {
  return rank.started[static_cast<size_t>(what.kind)] > what.number;
}

}  // namespace

bool wait_for_each_other(const OrderWatch::Statement& mine, const OrderWatch::Statement& theirs) {
  if (!needs(mine, theirs.rank) || !needs(theirs, mine.rank)) return false;
  if (mine.kind == theirs.kind && mine.number == theirs.number) {
    return mine.pending.agreed != theirs.pending.agreed;
  }
  return !has_started(theirs, mine) && !has_started(mine, theirs);
}

OrderWatch::OrderWatch(StorePointer store, int rank, std::vector<int> ranks)
    : store_(std::move(store)),
      rank_(static_cast<size_t>(rank)),
      ranks_(std::move(ranks)),
      look_(look_of(ranks_.size())) {
  if (ranks_.size() > 1) worker_ = std::thread([this] { run(); });
}

OrderWatch::~OrderWatch() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_or_due_.notify_one();
  if (worker_.joinable()) worker_.join();
}

uint64_t OrderWatch::count(Collective kind) {
  if (threads_.is_another()) is_threaded_ = true;
  return started_[static_cast<size_t>(kind)]++;
}

OrderWatch::Wait::Wait(OrderWatch& watch, const CollectiveCall& call, uint64_t number,
                       std::function<void()> stop)
    : watch_(&watch), call_(&call), number_(number), stop_(std::move(stop)) {
  if (watch.threads_.is_another()) watch.is_threaded_ = true;
  std::lock_guard lock(watch.mutex_);
  watch.wait_ = this;
  watch.since_ = Clock::now();
  ++watch.waits_;
}

OrderWatch::Wait::~Wait() {
  std::lock_guard lock(watch_->mutex_);
  if (watch_->wait_ == this) watch_->wait_ = nullptr;
}

std::string OrderWatch::Wait::disagreement() const {
  std::lock_guard lock(watch_->mutex_);
  return disagreement_;
}

// A rank's published wait may be over by the time that it is read. So the ranks must both stay in their waits
// until the other rank has published its wait twice more: it has made the second of these publications after
// this rank read the first one.
void OrderWatch::run() {
  uint64_t beat = 0;
  uint64_t seen_wait = 0;
  size_t place = rank_;
  std::optional<Statement> suspect;
  std::unique_lock lock(mutex_);
  while (!over_or_due_.wait_for(lock, look_, [this] { return is_over_; })) {
    if (!wait_ || is_threaded_ || Clock::now() - since_ < kPatience) continue;
    if (std::exchange(seen_wait, waits_) != waits_) suspect.reset();
    if (!suspect) place = (place + 1) % ranks_.size();
    if (place == rank_) place = (place + 1) % ranks_.size();
    const int other = ranks_[place];
    const Statement own = statement(++beat);
    lock.unlock();
    const std::optional<Statement> theirs = publish(own) ? read(other) : std::nullopt;
    lock.lock();
    if (!wait_ || waits_ != seen_wait || is_threaded_) continue;
    if (!theirs || !wait_for_each_other(own, *theirs)) {
      suspect.reset();
    } else if (!suspect || suspect->kind != theirs->kind || suspect->number != theirs->number) {
      suspect = theirs;
    } else if (theirs->beat >= suspect->beat + 2 && wait_->disagreement_.empty()) {
      wait_->disagreement_ =
          describe_disagreement(ranks_[rank_], own.pending.words, other, theirs->pending.words);
      wait_->stop_();
    }
  }
}

// The caller holds mutex_.
OrderWatch::Statement OrderWatch::statement(uint64_t beat) const {
  const CollectiveCall& call = *wait_->call_;
  Statement own{.rank = ranks_[rank_],
                .beat = beat,
                .kind = call.kind,
                .number = wait_->number_,
                .root = ranks_[static_cast<size_t>(call.root)]};
  for (size_t kind = 0; kind < started_.size(); ++kind) own.started[kind] = started_[kind];
  own.pending = pending_collective_of(call, call.input.numel());
  // Each text is one line when it is published. A label may have the name of a parameter, and that any bytes.
  for (std::string* text : {&own.pending.agreed, &own.pending.words}) std::ranges::replace(*text, '\n', ' ');
  return own;
}

bool OrderWatch::publish(const Statement& own) const {
  std::ostringstream text;
  text << own.beat << ' ' << static_cast<int>(own.kind) << ' ' << own.number << ' ' << own.root;
  for (const uint64_t started : own.started) text << ' ' << started;
  text << '\n' << own.pending.agreed << '\n' << own.pending.words << '\n';
  try {
    store_->set(key(own.rank), text.str(), Deadline(kLimit));
    return true;
  } catch (const std::exception&) {
    return false;  // the wait itself ends at its deadline
  }
}

std::optional<OrderWatch::Statement> OrderWatch::read(int rank) const {
  try {
    const auto text = store_->find(key(rank), Deadline(kLimit));
    if (!text) return std::nullopt;
    std::istringstream lines(*text);
    Statement found{.rank = rank};
    int kind = 0;
    lines >> found.beat >> kind >> found.number >> found.root;
    found.kind = static_cast<Collective>(kind);
    for (uint64_t& started : found.started) lines >> started;
    lines.ignore();
    std::getline(lines, found.pending.agreed);
    std::getline(lines, found.pending.words);
    return found;
  } catch (const std::exception&) {
    return std::nullopt;  // the wait itself ends at its deadline
  }
}

}  // namespace zerorun
