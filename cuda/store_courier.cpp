#include "cuda/store_courier.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace zerorun {
namespace {

struct Errands {
  std::optional<std::vector<Statement>> to_state;
  std::optional<std::string> to_tell;
  bool ask_told = false;
  bool ask_statements = false;

  bool any() const { return to_state || to_tell || ask_told || ask_statements; }
};

struct Answers {
  std::optional<std::string> told;
  std::optional<Statements> statements;
};

Answers run_errands(const Errands& errands, const Testimony& testimony, int world_size) {
  Answers answers;
  if (errands.to_state) testimony.state(*errands.to_state);
  if (errands.to_tell) testimony.tell_all(*errands.to_tell);
  if (errands.ask_statements) answers.statements = testimony.statements(world_size);
  if (errands.ask_told) answers.told = testimony.told_to_all();
  return answers;
}

}  // namespace

struct StoreCourier::Mailbox {
  // Nothing to do and nothing under way.
  bool settled() const { return !errands.any() && !away; }

  std::mutex mutex;
  std::condition_variable changed;
  Errands errands;
  Answers answers;
  bool away = false;  // the thread is at the store
  bool stopping = false;
  bool ended = false;
};

StoreCourier::StoreCourier(std::shared_ptr<const Testimony> testimony, int world_size)
    : mailbox_(std::make_shared<Mailbox>()),
      thread_([mailbox = mailbox_, testimony = std::move(testimony), world_size] {
        run(mailbox, *testimony, world_size);
      }) {}

StoreCourier::~StoreCourier() {
  stop();
}

void StoreCourier::run(const std::shared_ptr<Mailbox>& mailbox, const Testimony& testimony, int world_size) {
  std::unique_lock lock(mailbox->mutex);
  while (true) {
    mailbox->changed.wait(lock, [&] { return mailbox->stopping || mailbox->errands.any(); });
    if (!mailbox->errands.any()) break;
    const Errands errands = std::exchange(mailbox->errands, {});
    mailbox->away = true;
    lock.unlock();
    Answers answers = run_errands(errands, testimony, world_size);
    lock.lock();
    mailbox->away = false;
    if (errands.ask_told) mailbox->answers.told = std::move(answers.told);
    if (errands.ask_statements) mailbox->answers.statements = std::move(answers.statements);
    mailbox->changed.notify_all();
  }
  mailbox->ended = true;
  mailbox->changed.notify_all();
}

void StoreCourier::state(std::vector<Statement> waiting) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->errands.to_state = std::move(waiting);
  mailbox_->changed.notify_all();
}

void StoreCourier::tell_all(std::string text) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->errands.to_tell = std::move(text);
  mailbox_->changed.notify_all();
}

void StoreCourier::ask_told() {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->errands.ask_told = true;
  mailbox_->changed.notify_all();
}

std::optional<std::string> StoreCourier::take_told() {
  const std::lock_guard lock(mailbox_->mutex);
  return std::exchange(mailbox_->answers.told, std::nullopt);
}

std::optional<Statements> StoreCourier::statements(std::chrono::milliseconds patience) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->answers.statements.reset();
  mailbox_->errands.ask_statements = true;
  mailbox_->changed.notify_all();
  mailbox_->changed.wait_for(lock, patience, [this] { return mailbox_->answers.statements.has_value(); });
  return std::exchange(mailbox_->answers.statements, std::nullopt);
}

bool StoreCourier::settle(std::chrono::milliseconds patience) {
  std::unique_lock lock(mailbox_->mutex);
  return mailbox_->changed.wait_for(lock, patience, [this] { return mailbox_->settled(); });
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
