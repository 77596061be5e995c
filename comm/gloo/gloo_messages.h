// The messages between one rank and the others of a group over Gloo.
//
// A message is three transfers: a header from each of the two ranks to the other, which says what that rank
// expects, and the values. So both ranks see whether they agree. The tag of the values has a hash of the
// header, so that values never arrive in a tensor of another size.
//
// A send copies its tensor. Gloo transfers the copy once the receiver expects it, and can be asked about that
// only by waiting. So each receiver has a thread here that waits for the transfers in order and frees the
// copies.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/gloo/gloo_work.h"
#include "comm/message.h"

namespace zerorun {

/// Owned by the communicator and by its receives. Any thread, but only one at a time may call send() and
/// receive().
class GlooMessages : public std::enable_shared_from_this<GlooMessages> {
 public:
  explicit GlooMessages(std::shared_ptr<GlooLinks> links);
  /// Waits until what was sent is transferred, at most ten seconds.
  ~GlooMessages();
  GlooMessages(const GlooMessages&) = delete;
  GlooMessages& operator=(const GlooMessages&) = delete;

  /// Copies the tensor. If there is no room, waits for it. Throws CommError.
  void send(const MessageCall& call);
  std::shared_ptr<Work> receive(MessageCall call);
  /// Throws CommError if this rank and another one disagree on a message.
  void check() const;

 private:
  class Outbox;
  class Receipt;

  [[noreturn]] void fail(const MessageCall& call, const std::string& failure) const;
  void disagree(const std::string& error);

  const std::shared_ptr<GlooLinks> links_;
  std::mutex mutex_;
  std::set<const Receipt*> waiting_;               // receives for which a thread waits
  std::vector<GlooTransfer> dropped_;              // of receives that nobody has waited for
  std::vector<std::unique_ptr<Outbox>> outboxes_;  // by receiver; null: nothing was sent to it
};

}  // namespace zerorun
