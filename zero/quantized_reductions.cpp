#include "zero/quantized_reductions.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>
#include <vector>

#include "base/memory_report.h"
#include "zero/quantized_values.h"

namespace zerorun {

// Messages that are under way. The group of index `own` is this rank's.
class QuantizedReductions::Reduction final : public Work {
 public:
  Reduction(at::Tensor output, at::Tensor part, int64_t own)
      : output_(std::move(output)), part_(std::move(part)), own_(own) {}

  // The group's messages, in the order of the groups.
  void exchange(Communicator& ranks, int other, const at::Tensor& sums, const std::string& label) {
    sent_.push_back(ranks.send(quantized(sums), other, label));
    bytes_.push_back(at::empty({quantized_bytes(sums.numel())}, sums.options().dtype(at::kByte)));
    received_.push_back(ranks.receive(bytes_.back(), other, label));
  }

  void wait() override {
    const c10::NoGradGuard no_grad;
    const AllocatingFor scope(MemoryUse::messages);
    at::Tensor sum, values;
    const auto add = [&](const at::Tensor& more) {
      if (sum.defined()) {
        sum.add_(more);
      } else {
        sum = more.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      }
    };
    for (size_t index = 0; index <= received_.size(); ++index) {
      if (static_cast<int64_t>(index) == own_) add(part_);
      if (index == received_.size()) break;
      received_[index]->wait();
      if (!values.defined()) values = at::empty({part_.numel()}, part_.options().dtype(at::kFloat));
      dequantize(bytes_[index], values);
      add(values);
    }
    output_.copy_(sum);
    for (const std::unique_ptr<Work>& each : sent_) each->wait();
  }

 private:
  at::Tensor output_;
  at::Tensor part_;  // this rank's slice of its group's sum
  int64_t own_;
  std::vector<std::unique_ptr<Work>> sent_, received_;  // by group, without this rank's own
  std::vector<at::Tensor> bytes_;                       // likewise: what is received
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
  auto reduction = std::make_unique<Reduction>(output, sums[own], own);
  for (int64_t group = 0; group < groups(); ++group) {
    if (group != own)
      reduction->exchange(*ranks_, static_cast<int>(group * members() + place), sums[group], label);
  }
  return reduction;
}

}  // namespace zerorun
