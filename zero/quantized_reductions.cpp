#include "zero/quantized_reductions.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>
#include <vector>

#include "base/memory_report.h"
#include "zero/quantized_values.h"

namespace zerorun {

// A sum whose messages are under way.
class QuantizedReductions::Reduction final : public Work {
 public:
  /// `part`: this rank's slice of its group's sum. Exchanges with other groups follow, in their order.
  Reduction(at::Tensor output, at::Tensor part) : output_(std::move(output)), part_(std::move(part)) {}

  /// `other`: the rank of the next group; `sums`: that rank's slice of this group's sum.
  void exchange(Communicator& ranks, int other, const at::Tensor& sums, const std::string& label) {
    Exchange& next = exchanges_.emplace_back();
    next.sent = ranks.send(quantized(sums), other, label);
    next.bytes = at::empty({quantized_bytes(sums.numel())}, sums.options().dtype(at::kByte));
    next.received = ranks.receive(next.bytes, other, label);
  }
  /// The next group is this rank's.
  void skip_own() { exchanges_.emplace_back(); }

  void wait() override {
    const c10::NoGradGuard no_grad;
    const AllocatingFor scope(MemoryUse::messages);
    const at::Tensor sum = at::zeros_like(part_, at::kFloat), values = at::empty_like(sum);
    for (const Exchange& each : exchanges_) {
      if (!each.received) {
        sum.add_(part_);
        continue;
      }
      each.received->wait();
      dequantize(each.bytes, values);
      sum.add_(values);
    }
    output_.copy_(sum);
    for (const Exchange& each : exchanges_) {
      if (each.sent) each.sent->wait();
    }
  }

 private:
  struct Exchange {
    std::unique_ptr<Work> sent, received;
    at::Tensor bytes;  // that are received
  };

  at::Tensor output_;
  at::Tensor part_;
  std::vector<Exchange> exchanges_;  // by group; that of this rank's own is empty
};

QuantizedReductions::QuantizedReductions(bool enabled, Communicator& ranks, Communicator* group)
    : enabled_(enabled), ranks_(&ranks), group_(group) {
  if (!enabled) return;
  std::vector<std::pair<int, int>> pairs;
  for (int first = 0; first < ranks.world_size(); ++first) {
    for (int second = first + static_cast<int>(members()); second < ranks.world_size();
         second += static_cast<int>(members()))
      pairs.emplace_back(first, second);
  }
  ranks.open_messages(pairs);
}

// The sums of the group's inputs over the slices of the ranks with this rank's place in their groups.
at::Tensor QuantizedReductions::sums_of_group(const at::Tensor& input, const std::string& label) {
  if (!group_) return input;
  const at::Tensor by_place = input.view({groups(), members(), -1}).transpose(0, 1).contiguous().view({-1});
  const at::Tensor sums = at::empty({input.numel() / members()}, input.options());
  group_->reduce_scatter(sums, by_place, label)->wait();
  return sums;
}

std::unique_ptr<Work> QuantizedReductions::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                          const std::string& label) {
  const c10::NoGradGuard no_grad;
  const AllocatingFor scope(MemoryUse::messages);
  const at::Tensor sums = sums_of_group(input, label).view({groups(), -1});
  const int64_t own = ranks_->rank() / members(), place = ranks_->rank() % members();
  auto reduction = std::make_unique<Reduction>(output, sums[own]);
  for (int64_t group = 0; group < groups(); ++group) {
    if (group == own) {
      reduction->skip_own();
    } else {
      reduction->exchange(*ranks_, static_cast<int>(group * members() + place), sums[group], label);
    }
  }
  return reduction;
}

}  // namespace zerorun
