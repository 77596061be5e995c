#include "comm/agreement.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace zerorun {

std::vector<std::string> exchange_texts(const std::string& text, Communicator& communicator,
                                        const std::string& label) {
  const int ranks = communicator.world_size();
  // In a plan the other ranks are imagined, and say the same.
  if (communicator.device().location().is_meta())
    return std::vector<std::string>(static_cast<size_t>(ranks), text);
  at::Tensor lengths = at::zeros({ranks}, at::kLong);
  int64_t* length = lengths.mutable_data_ptr<int64_t>();
  length[communicator.rank()] = static_cast<int64_t>(text.size());
  communicator.all_reduce(lengths, label)->wait();
  const int64_t longest = *std::max_element(length, length + ranks);
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(ranks));
  at::Tensor own = at::zeros({longest}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  at::Tensor all = at::zeros({ranks * longest}, at::kByte);
  communicator.all_gather(all, own, label)->wait();
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks; ++rank) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * longest,
                       static_cast<size_t>(length[rank]));
  }
  return texts;
}

Failure Failure::decoded(const std::string& encoded) {
  if (encoded.empty()) return {};
  const bool is_users = encoded.front() == static_cast<char>(Kind::user);
  return {is_users ? Kind::user : Kind::other, encoded.substr(1)};
}

Failure Failure::on_rank(int rank, int world_size) const {
  if (!*this || world_size == 1) return *this;
  return {kind, "rank " + std::to_string(rank) + ": " + text};
}

void Failure::raise() const {
  if (kind == Kind::user) throw UserError(text);
  if (kind == Kind::other) throw TrainingError(text);
}

void raise_first(const std::vector<std::string>& failures) {
  const int ranks = static_cast<int>(failures.size());
  for (int rank = 0; rank < ranks; ++rank) Failure::decoded(failures[rank]).on_rank(rank, ranks).raise();
}

}  // namespace zerorun
