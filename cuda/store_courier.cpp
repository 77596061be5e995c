#include "cuda/store_courier.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace zerorun {

struct StoreErrands {
  std::optional<std::vector<PendingCollective>> to_publish;
  std::optional<std::string> to_tell;
  bool ask_posted = false;
  bool wants_collectives = false;

  bool any() const { return to_publish || to_tell || ask_posted || wants_collectives; }
};

struct StoreAnswers {
  std::optional<std::string> posted;
  std::optional<PendingCollectives> collectives;
};

namespace {

StoreAnswers run_errands(const StoreErrands& errands, const WaitBoard& wait_board, int world_size) {
  StoreAnswers answers;
  if (errands.to_publish) wait_board.publish(*errands.to_publish);
  if (errands.to_tell) wait_board.post_for_all(*errands.to_tell);
  if (errands.wants_collectives) answers.collectives = wait_board.read_all(world_size);
  if (errands.ask_posted) answers.posted = wait_board.posted_for_all();
  return answers;
}

}  // namespace

struct StoreCourier::Mailbox {
  // True if no message waits and no call to the store is in progress.
  bool drained() const { return !errands.any() && !away; }

  std::mutex mutex;
  std::condition_variable changed;
  StoreErrands errands;
  StoreAnswers answers;
  bool away = false;  // the thread is in a call to the store
  bool stopping = false;
  bool ended = false;
};

StoreCourier::StoreCourier(std::shared_ptr<const WaitBoard> wait_board, int world_size)
    : mailbox_(std::make_shared<Mailbox>()),
      thread_([mailbox = mailbox_, wait_board = std::move(wait_board), world_size] {
        run(mailbox, *wait_board, world_size);
      }) {}

StoreCourier::~StoreCourier() {
  stop();
}

void StoreCourier::run(const std::shared_ptr<Mailbox>& mailbox, const WaitBoard& wait_board, int world_size) {
  std::unique_lock lock(mailbox->mutex);
  while (true) {
    mailbox->changed.wait(lock, [&] { return mailbox->stopping || mailbox->errands.any(); });
    if (!mailbox->errands.any()) break;
    const StoreErrands errands = std::exchange(mailbox->errands, {});
    mailbox->away = true;
    lock.unlock();
    StoreAnswers answers = run_errands(errands, wait_board, world_size);
    lock.lock();
    mailbox->away = false;
    if (errands.ask_posted) mailbox->answers.posted = std::move(answers.posted);
    if (errands.wants_collectives) mailbox->answers.collectives = std::move(answers.collectives);
    mailbox->changed.notify_all();
  }
  mailbox->ended = true;
  mailbox->changed.notify_all();
}

void StoreCourier::publish(std::vector<PendingCollective> waiting) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->errands.to_publish = std::move(waiting);
  mailbox_->changed.notify_all();
}

void StoreCourier::post_for_all(std::string text) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->errands.to_tell = std::move(text);
  mailbox_->changed.notify_all();
}

void StoreCourier::ask_posted() {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->errands.ask_posted = true;
  mailbox_->changed.notify_all();
}

std::optional<std::string> StoreCourier::take_posted() {
  const std::lock_guard lock(mailbox_->mutex);
  return std::exchange(mailbox_->answers.posted, std::nullopt);
}

std::optional<PendingCollectives> StoreCourier::read_all(std::chrono::milliseconds patience) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->answers.collectives.reset();
  mailbox_->errands.wants_collectives = true;
  mailbox_->changed.notify_all();
  mailbox_->changed.wait_for(lock, patience, [this] { return mailbox_->answers.collectives.has_value(); });
  return std::exchange(mailbox_->answers.collectives, std::nullopt);
}

bool StoreCourier::drain(std::chrono::milliseconds patience) {
  std::unique_lock lock(mailbox_->mutex);
  return mailbox_->changed.wait_for(lock, patience, [this] { return mailbox_->drained(); });
}

void StoreCourier::stop(std::chrono::milliseconds patience) {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->stopping = true;
  mailbox_->changed.notify_all();
  const bool ended = mailbox_->changed.wait_for(lock, patience, [this] { return mailbox_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace zerorun
