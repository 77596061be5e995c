#include "comm/notices.h"

#include <utility>

namespace zerorun {
namespace {

class ThreadNotices : public Notices {
 public:
  ThreadNotices(std::shared_ptr<NoticesInMemory> texts, int board)
      : texts_(std::move(texts)), prefix_(std::to_string(board) + "/") {}

  void post(const std::string& name, const std::string& text, const Deadline&) override {
    texts_->post(prefix_ + name, text);
  }
  std::optional<std::string> await(const std::string& name, const Deadline& deadline) override {
    return texts_->await(prefix_ + name, deadline);
  }
  void remove(const std::string& name, const Deadline&) override { texts_->remove(prefix_ + name); }

 private:
  std::shared_ptr<NoticesInMemory> texts_;
  std::string prefix_;
};

}  // namespace

void NoticesInMemory::post(const std::string& name, const std::string& text) {
  const std::lock_guard lock(mutex_);
  texts_[name] = text;
  changed_.notify_all();
}

std::optional<std::string> NoticesInMemory::await(const std::string& name, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.end(), [&] { return texts_.contains(name); })) return std::nullopt;
  return texts_[name];
}

void NoticesInMemory::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  texts_.erase(name);
}

std::unique_ptr<Notices> make_notices(std::shared_ptr<NoticesInMemory> texts, int board) {
  return std::make_unique<ThreadNotices>(std::move(texts), board);
}

}  // namespace zerorun
