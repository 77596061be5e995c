// Wraps transfers and injects one kind of fault.
#pragma once

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "offload/transfers.h"

namespace zerorun::testing {

enum class TransferFault {
  none,
  error,     // the transfer fails with EIO
  is_full,   // a write fails with ENOSPC; a read succeeds
  is_short,  // every transfer ends after 4 KiB
  flips,     // a read flips one bit
};

class FaultyTransfers : public Transfers {
 public:
  /// `number`: index of the faulty transfer; with is_short, every transfer is faulty. `count` receives the
  /// number of transfers so far.
  FaultyTransfers(std::unique_ptr<Transfers> inner, TransferFault fault, int64_t number, int64_t& count)
      : inner_(std::move(inner)), fault_(fault), number_(number), count_(&count) {}

  void start(const Transfer& transfer, int tag) override {
    constexpr size_t kShort = 4096;
    Transfer given = transfer;
    if (fault_ == TransferFault::is_short)
      given.bytes = given.bytes.first(std::min(kShort, given.bytes.size()));
    if ((*count_)++ == number_) {
      faulty_ = transfer;
      faulty_tag_ = tag;
    }
    inner_->start(given, tag);
  }

  std::optional<TransferDone> next(std::chrono::milliseconds patience) override {
    std::optional<TransferDone> done = inner_->next(patience);
    if (!done || done->tag != faulty_tag_) return done;
    faulty_tag_ = -1;
    if (fault_ == TransferFault::error) done->result = -EIO;
    if (fault_ == TransferFault::is_full && faulty_.writes) done->result = -ENOSPC;
    if (fault_ == TransferFault::flips && !faulty_.writes)
      faulty_.bytes[faulty_.bytes.size() / 2] ^= std::byte{4};
    return done;
  }

  const char* name() const override { return inner_->name(); }

 private:
  std::unique_ptr<Transfers> inner_;
  TransferFault fault_;
  int64_t number_;
  int64_t* count_;
  Transfer faulty_ = {};
  int faulty_tag_ = -1;
};

}  // namespace zerorun::testing
