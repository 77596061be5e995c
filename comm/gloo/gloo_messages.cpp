// The gloo/*.h headers come from comm/gloo/gloo_declarations.
#define USE_C10D_GLOO 1
#include "comm/gloo/gloo_messages.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "base/activity_board.h"
#include "base/error.h"
#include "base/fnv1a.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

// The longest time that the destructor waits for messages that nobody has received.
constexpr milliseconds kPatienceWithSent(10'000);
// The thread of an outbox waits for as long as the receiver takes.
constexpr milliseconds kWithoutLimit = std::chrono::hours(24 * 365);

// Kinds of transfers, which follow those of collectives in tags (comm/gloo/gloo_communicator.cpp).
enum class Part { header_of_sender = kCollectiveKinds, header_of_receiver, values };
static_assert(static_cast<int>(Part::values) < 8, "a kind has three bits in a tag");

struct Header {
  int64_t numel;
  uint64_t label_hash;
  int32_t dtype;
  char label[236];

  MessageFacts facts() const {
    return {.numel = numel, .dtype = static_cast<at::ScalarType>(dtype), .label = label};
  }
  bool agrees(const Header& other) const {
    return numel == other.numel && label_hash == other.label_hash && dtype == other.dtype;
  }
};

Header header_of(const MessageCall& call) {
  Header header{.numel = call.tensor.numel(),
                .label_hash = fnv1a(kFnv1aStart, call.label),
                .dtype = static_cast<int32_t>(call.tensor.scalar_type()),
                .label = {}};
  call.label.copy(header.label, sizeof header.label - 1);
  return header;
}

at::Tensor packed(const Header& header) {
  at::Tensor bytes = at::zeros({sizeof header}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes.mutable_data_ptr(), &header, sizeof header);
  return bytes;
}

Header unpacked(const at::Tensor& bytes) {
  Header header;
  std::memcpy(&header, bytes.const_data_ptr(), sizeof header);
  return header;
}

int tag_of(Part part, uint64_t number, uint64_t hash = 0) {
  return static_cast<int>(number & 0x1ff) << 22 | static_cast<int>(part) << 19 |
         static_cast<int>(hash * 0x9e3779b97f4a7c15ULL >> 45);
}

int tag_of_values(const Header& header, uint64_t number) {
  uint64_t hash = fnv1a(header.label_hash, static_cast<uint64_t>(header.numel));
  hash = fnv1a(hash, static_cast<uint64_t>(header.dtype));
  return tag_of(Part::values, number, hash);
}

// The transfers of one message.
struct Transfers {
  Header mine;
  at::Tensor theirs;  // the other rank's header, when it has arrived
  GlooTransfer their_header;
  GlooTransfer my_header;
  std::optional<GlooTransfer> values;  // none if the message is empty

  std::vector<GlooTransfer> all() const {
    std::vector<GlooTransfer> list{their_header, my_header};
    if (values) list.push_back(*values);
    return list;
  }
};

// Receives are posted before sends, because Gloo sends only once the receiver expects it.
Transfers start(const GlooLinks& links, const MessageCall& call, const at::Tensor& values) {
  const int other = call.other();
  const Header mine = header_of(call);
  Transfers transfers{.mine = mine, .theirs = packed({}), .their_header = {}, .my_header = {}, .values = {}};
  transfers.their_header =
      start_receive(links, other, transfers.theirs,
                    tag_of(call.is_send ? Part::header_of_receiver : Part::header_of_sender, call.number));
  const int tag = tag_of_values(mine, call.number);
  if (mine.numel > 0 && !call.is_send) transfers.values = start_receive(links, other, values, tag);
  transfers.my_header =
      start_send(links, other, packed(mine),
                 tag_of(call.is_send ? Part::header_of_sender : Part::header_of_receiver, call.number));
  if (mine.numel > 0 && call.is_send) transfers.values = start_send(links, other, values, tag);
  return transfers;
}

}  // namespace

// What was sent to one receiver, and the thread that waits for it.
class GlooMessages::Outbox {
 public:
  explicit Outbox(GlooMessages& messages) : messages_(messages), worker_([this] { run(); }) {}
  ~Outbox() {
    close(Deadline(milliseconds(0)));
    worker_.join();
  }

  // Returns why the connection to the receiver is lost; empty if there is room now.
  std::string await_room(int64_t bytes, const Deadline& deadline) {
    const FailureWatch::Wait for_announcements(*messages_.links_->announcements, [this] { give_up(); });
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_until(
        lock, deadline.end(), [&] { return !failure_.empty() || has_room(sent_.size(), bytes_, bytes); });
    return ended ? failure_ : "timeout";
  }

  void add(const MessageCall& call) {
    const int64_t bytes = call.bytes();
    at::Tensor copy;
    ScratchBuffers& scratch = messages_.links_->scratch;
    if (bytes > 0) {
      copy = scratch.take(bytes, at::kByte);
      std::memcpy(copy.mutable_data_ptr(), call.tensor.const_data_ptr(), call.tensor.nbytes());
    }
    Sent sent{.call = call, .bytes = bytes, .copy = copy, .transfers = start(*messages_.links_, call, copy)};
    std::lock_guard lock(mutex_);
    bytes_ += bytes;
    sent_.push_back(std::move(sent));
    changed_.notify_all();
  }

  // Waits until everything is transferred, and gives up what is not by the deadline.
  void close(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.end(), [&] { return sent_.empty() || !failure_.empty(); });
    closing_ = true;
    if (!sent_.empty()) {
      for (const GlooTransfer& one : sent_.front().transfers.all()) one.stop();
    }
    changed_.notify_all();
  }

 private:
  struct Sent {
    MessageCall call;
    int64_t bytes;
    at::Tensor copy;
    Transfers transfers;
  };

  // Makes await_room() end.
  void give_up() {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = "stopped";
    changed_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closing_ || !sent_.empty(); });
      if (closing_) return;
      const Sent& oldest = sent_.front();  // only this thread removes it
      lock.unlock();
      std::string failure = failure_of(oldest);
      lock.lock();
      if (!failure.empty()) {
        failure_ = std::move(failure);
        changed_.notify_all();
        return;
      }
      if (oldest.bytes > 0) messages_.links_->scratch.give_back(oldest.copy);
      bytes_ -= oldest.bytes;
      sent_.pop_front();
      changed_.notify_all();
    }
  }

  std::string failure_of(const Sent& sent) {
    const Transfers& transfers = sent.transfers;
    if (std::string failure = transfers.their_header.await(kWithoutLimit); !failure.empty()) return failure;
    const Header theirs = unpacked(transfers.theirs);
    if (!transfers.mine.agrees(theirs)) {
      messages_.disagree(describe_disagreement(sent.call, theirs.facts(), messages_.links_->ranks));
      return "disagreement";
    }
    if (std::string failure = transfers.my_header.await(kWithoutLimit); !failure.empty()) return failure;
    return transfers.values ? transfers.values->await(kWithoutLimit) : "";
  }

  GlooMessages& messages_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sent> sent_;
  int64_t bytes_ = 0;  // of `sent_`
  std::string failure_;
  bool closing_ = false;
  std::thread worker_;
};

// One receive. One thread.
class GlooMessages::Receipt : public Work {
 public:
  Receipt(std::shared_ptr<GlooMessages> messages, MessageCall call)
      : messages_(std::move(messages)),
        call_(std::move(call)),
        transfers_(start(*messages_->links_, call_, call_.tensor)) {}

  // The message stays expected, since it would block later ones otherwise.
  ~Receipt() override {
    if (over_) return;
    std::lock_guard lock(messages_->mutex_);
    std::ranges::move(transfers_.all(), std::back_inserter(messages_->dropped_));
  }

  void wait() override {
    const ShownWait shown("", describe(call_, messages_->links_->ranks));
    const std::string failure = failure_of(Deadline(messages_->links_->timeout));
    over_ = true;
    if (!failure.empty()) messages_->fail(call_, failure);
  }

  // Makes wait() end.
  void stop() const {
    for (const GlooTransfer& one : transfers_.all()) one.stop();
  }

 private:
  // While it exists, a disagreement on another message ends the wait.
  struct Waiting {
    explicit Waiting(const Receipt& own) : receipt(own) {
      std::lock_guard lock(receipt.messages_->mutex_);
      receipt.messages_->waiting_.insert(&receipt);
    }
    ~Waiting() {
      std::lock_guard lock(receipt.messages_->mutex_);
      receipt.messages_->waiting_.erase(&receipt);
    }
    const Receipt& receipt;
  };

  std::string failure_of(const Deadline& deadline) {
    const Waiting waiting(*this);
    const FailureWatch::Wait for_announcements(*messages_->links_->announcements, [this] { stop(); });
    messages_->check();
    if (std::string failure = transfers_.their_header.await(deadline.remaining()); !failure.empty())
      return failure;
    const Header theirs = unpacked(transfers_.theirs);
    if (!transfers_.mine.agrees(theirs)) {
      messages_->links_->disagreement.set(
          describe_disagreement(call_, theirs.facts(), messages_->links_->ranks));
      return "disagreement";
    }
    if (transfers_.values) {
      if (std::string failure = transfers_.values->await(deadline.remaining()); !failure.empty())
        return failure;
    }
    return transfers_.my_header.await(deadline.remaining());
  }

  const std::shared_ptr<GlooMessages> messages_;
  const MessageCall call_;
  const Transfers transfers_;
  bool over_ = false;
};

GlooMessages::GlooMessages(std::shared_ptr<GlooLinks> links)
    : links_(std::move(links)), outboxes_(links_->ranks.size()) {}

GlooMessages::~GlooMessages() {
  const Deadline deadline(links_->broken() ? milliseconds(0) : kPatienceWithSent);
  for (const auto& outbox : outboxes_) {
    if (outbox) outbox->close(deadline);
  }
}

void GlooMessages::send(const MessageCall& call) {
  links_->failures->open();
  check();
  auto& outbox = outboxes_[static_cast<size_t>(call.receiver)];
  if (!outbox) outbox = std::make_unique<Outbox>(*this);
  const ShownWait shown("", describe(call, links_->ranks));
  const std::string failure = outbox->await_room(call.bytes(), Deadline(links_->timeout));
  if (!failure.empty()) fail(call, failure);
  outbox->add(call);
}

std::shared_ptr<Work> GlooMessages::receive(MessageCall call) {
  links_->failures->open();
  check();
  return std::make_shared<Receipt>(shared_from_this(), std::move(call));
}

void GlooMessages::check() const {
  if (const std::string error = links_->disagreement.get(); !error.empty()) throw CommError(error);
  if (!links_->announcements->announced().empty()) throw CommError(links_->announcements->find());
}

// Called by the thread of an outbox.
void GlooMessages::disagree(const std::string& error) {
  links_->disagreement.set(error);
  links_->wait_board.mark_broken();
  std::lock_guard lock(mutex_);
  for (const Receipt* receipt : waiting_) receipt->stop();
}

// Posts the error before it asks what the other rank waits for: a rank that waits for this one may fail
// meanwhile.
void GlooMessages::fail(const MessageCall& call, const std::string& failure) const {
  links_->wait_board.mark_broken();
  const int other = links_->ranks[static_cast<size_t>(call.other())];
  const std::string what = describe(call, links_->ranks);
  std::string error = links_->disagreement.get();
  if (error.empty()) error = links_->announcements->find();
  bool has_cause = !error.empty();
  if (error.empty()) {
    error = is_timeout(failure) ? missed_deadline(call, links_->ranks, links_->timeout)
                                : what + ": lost the connection to rank " + std::to_string(other) +
                                      ", which has probably ended (" + failure + ")";
    const std::string cause = links_->failures->first_of({other});
    has_cause = !cause.empty() || !is_timeout(failure);
    error += cause;
  }
  links_->failures->post(links_->ranks[static_cast<size_t>(links_->group->getRank())], error);
  if (!has_cause) error += links_->wait_board.words_of_wait({.agreed = what, .words = what}, other);
  throw CommError(error);
}

}  // namespace zerorun
