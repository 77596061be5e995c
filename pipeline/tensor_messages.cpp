#include "pipeline/tensor_messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Logging.h>

#include <utility>

namespace zerorun {
namespace {

// The description of a list: the number of tensors, then for each its dtype, requires_grad, number of
// dimensions and sizes.
std::vector<int64_t> encode(const std::vector<TensorFacts>& facts) {
  std::vector<int64_t> numbers{static_cast<int64_t>(facts.size())};
  for (const TensorFacts& one : facts) {
    numbers.push_back(static_cast<int64_t>(one.dtype));
    numbers.push_back(one.requires_grad ? 1 : 0);
    numbers.push_back(static_cast<int64_t>(one.sizes.size()));
    numbers.insert(numbers.end(), one.sizes.begin(), one.sizes.end());
  }
  return numbers;
}

std::vector<TensorFacts> decode(const at::Tensor& description) {
  const int64_t* next = description.const_data_ptr<int64_t>();
  std::vector<TensorFacts> facts(static_cast<size_t>(*next++));
  for (TensorFacts& one : facts) {
    one.dtype = static_cast<at::ScalarType>(*next++);
    one.requires_grad = *next++ != 0;
    const int64_t dims = *next++;
    one.sizes.assign(next, next + dims);
    next += dims;
  }
  return facts;
}

std::string label_of_tensor(const std::string& label, size_t index, size_t count) {
  return count == 1 ? label : label + ", tensor " + std::to_string(index + 1);
}

Tensors allocate(const std::vector<TensorFacts>& facts, Communicator& ranks) {
  Tensors tensors;
  for (const TensorFacts& one : facts)
    tensors.push_back(at::empty(one.sizes, at::TensorOptions(one.dtype).device(ranks.device().location())));
  return tensors;
}

// The values as they lie in memory: of a conjugate or negative view they are computed first.
at::Tensor in_memory(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

}  // namespace

std::vector<TensorFacts> facts_of(const Tensors& tensors) {
  std::vector<TensorFacts> facts;
  for (const at::Tensor& tensor : tensors)
    facts.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.requires_grad()});
  return facts;
}

std::string describe(const Tensors& tensors) {
  std::string text = std::to_string(tensors.size()) + (tensors.size() == 1 ? " tensor (" : " tensors (");
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (index > 0) text += ", ";
    const at::Tensor& tensor = tensors[index];
    text += tensor.defined() ? c10::str(tensor.scalar_type(), " ", tensor.sizes()) : "undefined";
  }
  return text + ")";
}

void send_tensors(Communicator& ranks, int receiver, const Tensors& tensors, const std::string& label) {
  for (size_t index = 0; index < tensors.size(); ++index) {
    ranks.send(in_memory(tensors[index]), receiver, label_of_tensor(label, index, tensors.size()))->wait();
  }
}

Tensors expect_tensors(Communicator& ranks, int sender, const std::vector<TensorFacts>& facts,
                       const std::string& label, std::vector<std::unique_ptr<Work>>& works) {
  Tensors tensors = allocate(facts, ranks);
  for (size_t index = 0; index < tensors.size(); ++index)
    works.push_back(ranks.receive(tensors[index], sender, label_of_tensor(label, index, tensors.size())));
  return tensors;
}

void wait_for(std::vector<std::unique_ptr<Work>>& works) {
  for (const auto& work : works) work->wait();
  works.clear();
}

void TensorSender::send(const Tensors& tensors, const std::string& label) {
  std::vector<TensorFacts> facts = facts_of(tensors);
  const bool changed = facts != facts_;
  std::vector<int64_t> description;
  if (changed) description = encode(facts);
  const at::Tensor news = at::full({1}, static_cast<int64_t>(description.size()), at::kLong);
  ranks_->send(news, receiver_, "shapes of " + label)->wait();
  if (changed) {
    send_tensors(*ranks_, receiver_, allocate(facts_, *ranks_), label);
    facts_ = std::move(facts);
    const at::Tensor numbers = at::empty({static_cast<int64_t>(description.size())}, at::kLong);
    std::ranges::copy(description, numbers.mutable_data_ptr<int64_t>());
    ranks_->send(numbers, receiver_, "shapes of " + label)->wait();
  }
  send_tensors(*ranks_, receiver_, tensors, label);
}

void TensorReceiver::expect(const std::string& label) {
  label_ = label;
  news_ = at::empty({1}, at::kLong);
  works_.push_back(ranks_->receive(news_, sender_, "shapes of " + label));
  tensors_ = expect_tensors(*ranks_, sender_, facts_, label, works_);
}

Tensors TensorReceiver::take() {
  wait_for(works_);
  if (const int64_t length = *news_.const_data_ptr<int64_t>(); length > 0) {
    const at::Tensor numbers = at::empty({length}, at::kLong);
    ranks_->receive(numbers, sender_, "shapes of " + label_)->wait();
    facts_ = decode(numbers);
    tensors_ = expect_tensors(*ranks_, sender_, facts_, label_, works_);
    wait_for(works_);
  }
  return std::exchange(tensors_, {});
}

}  // namespace zerorun
