#include "engine/step_hashes.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "device/element_hash.h"

namespace zerorun {
namespace {

constexpr uint32_t kOfValues = 0;
constexpr uint32_t kOfMaster = 0x6d617374U;  // any other number
constexpr int64_t kGrain = 1 << 16;          // elements of a thread

at::Tensor on_host(const at::Tensor& values) {
  return values.is_cpu() ? values : values.cpu();
}

// Adds parts(begin, end) of `numel` elements, computed by LibTorch's threads.
template <typename Part>
void add_parts(std::atomic<uint64_t>& sum, int64_t numel, const Part& part) {
  at::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
    sum.fetch_add(part(begin, end), std::memory_order_relaxed);
  });
}

HashText text_of(std::span<const uint64_t> sums) {
  HashText text;
  text.reserve(16 * sums.size());
  for (const uint64_t sum : sums) text += in_hexadecimal(sum);
  return text;
}

// The elements in the order of memory, as the buckets have them.
at::Tensor flat(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  return dense.detach().as_strided({dense.numel()}, {1});
}

}  // namespace

std::vector<LoggedParameter> logged_parameters(const ModelParameters& parameters) {
  std::vector<LoggedParameter> logged;
  for (const auto* bucketed : {&parameters.trained, &parameters.frozen}) {
    for (const NamedParameter& parameter : *bucketed)
      logged.push_back({parameter.name, parameter.tensor.sizes().vec(), parameter.group != kFrozen});
  }
  for (const NamedTensor& other : parameters.unbucketed) {
    if (!other.is_buffer) logged.push_back({other.name, other.tensor.sizes().vec(), /*is_trained=*/false});
  }
  // Whether frozen parameters are in buckets depends on the stage.
  const auto first_frozen = std::ranges::find(logged, false, &LoggedParameter::is_trained);
  std::ranges::sort(first_frozen, logged.end(), {}, &LoggedParameter::name);
  return logged;
}

StepHashes::StepHashes(const std::vector<LoggedParameter>& parameters, SliceStore& store,
                       const Buckets& buckets, const std::vector<NamedTensor>& unbucketed, const Mesh& mesh)
    : store_(&store),
      buckets_(&buckets),
      unbucketed_(&unbucketed),
      mesh_(&mesh),
      gradients_(parameters.size()),
      values_(parameters.size()),
      before_(parameters.size()),
      after_(parameters.size()) {
  for (const LoggedParameter& parameter : parameters) {
    places_.emplace(parameter.name, places_.size());
    if (parameter.is_trained) ++trained_;
  }
  for (const NamedParameter& parameter : buckets.parameters())
    place_of_.push_back(places_.at(parameter.name));
}

// Calls visit(first, offset, length) for each run of elements that lie in the whole parameter side by side:
// `first` is the index there, `offset` that in the range of `numel` elements from `begin` on.
template <typename Visit>
void StepHashes::for_each_run(int parameter, int64_t begin, int64_t numel, const Visit& visit) const {
  const NamedParameter& named = buckets_->parameters()[parameter];
  if (!named.split) return visit(begin, 0, numel);
  const Split& split = *named.split;
  const std::vector<int64_t> whole = buckets_->whole_sizes(parameter);
  int64_t inner = 1;
  for (size_t dim = static_cast<size_t>(split.dim) + 1; dim < whole.size(); ++dim) inner *= whole[dim];
  const auto& ranges = split.parts[mesh_->coordinates().tensor];
  const int64_t end = begin + numel;
  const int64_t of_part = split.size_of_part(mesh_->coordinates().tensor) * inner;
  for (int64_t outer = begin / std::max<int64_t>(of_part, 1); outer * of_part < end; ++outer) {
    int64_t position = outer * of_part;
    for (const Range& range : ranges) {
      const int64_t length = range.numel * inner;
      const Range run = overlap({begin, numel}, {position, length});
      if (run.numel > 0) {
        const int64_t first = (outer * split.whole + range.begin) * inner + run.begin - position;
        visit(first, run.begin - begin, run.numel);
      }
      position += length;
    }
  }
}

void StepHashes::add(Sums& sums, int parameter, const at::Tensor& values, int64_t begin, uint32_t salt) {
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  const auto size = static_cast<int64_t>(values.element_size());
  for_each_run(parameter, begin, values.numel(), [&](int64_t first, int64_t offset, int64_t length) {
    add_parts(sums[place_of_[parameter]], length, [&](int64_t from, int64_t to) {
      return hash_of_bits(bytes + (offset + from) * size, size, to - from, first + from, salt);
    });
  });
}

HashText StepHashes::share_start() {
  is_before_start_ = false;
  left_.clear();
  for (int parameter = 0; parameter < static_cast<int>(buckets_->parameters().size()); ++parameter) {
    if (!is_counted(buckets_->bucket_of(parameter))) continue;
    store_->for_each_piece(parameter, [&](const StatePiece& piece) {
      const bool is_value = piece.state->kind == StateKind::value;
      const bool is_master = piece.state->kind == StateKind::master && buckets_->masters().are_rounded();
      if (is_value || is_master)
        add(values_, parameter, on_host(piece.values), piece.begin, is_value ? kOfValues : kOfMaster);
    });
  }
  add_others();
  std::vector<uint64_t> sums(values_.begin(), values_.end());
  for (auto& sum : values_) sum = 0;
  all_reduce(sums, "hashes of the first values");
  return text_of(sums);
}

// Frozen parameters outside of buckets, which all ranks have whole.
void StepHashes::add_others() {
  if (mesh_->data().rank() != 0 || (buckets_->options().tensor && mesh_->coordinates().tensor != 0)) return;
  for (const NamedTensor& other : *unbucketed_) {
    if (other.is_buffer || (other.tied && other.tied->rank() != 0)) continue;
    const at::Tensor values = on_host(flat(other.tensor));
    const auto size = static_cast<int64_t>(values.element_size());
    if (!std::has_single_bit(static_cast<uint64_t>(size)) || size > 8) continue;  // complex numbers
    values_[places_.at(other.name)] +=
        hash_of_bits(values.const_data_ptr(), size, values.numel(), 0, kOfValues);
  }
}

void StepHashes::begin_step(double divisor) {
  for (Sums* sums : {&gradients_, &values_, &before_, &after_}) {
    for (auto& sum : *sums) sum = 0;
  }
  is_updated_ = false;
  const auto factor = static_cast<float>(1 / divisor);
  for (int bucket = 0; bucket < buckets_->trained_count(); ++bucket) {
    if (!is_counted(bucket)) continue;
    const at::Tensor own = on_host(store_->at(bucket, kGradient).own).to(at::kFloat);
    for (const int parameter : store_->layout(bucket).parameters) {
      const Range range = store_->range_in_slice(parameter, store_->rank());
      if (range.numel == 0) continue;
      const int64_t begin = store_->index_in_parameter(parameter, store_->rank(), range.begin);
      const float* gradients = own.const_data_ptr<float>() + range.begin;
      for_each_run(parameter, begin, range.numel, [&](int64_t first, int64_t offset, int64_t length) {
        add_parts(gradients_[place_of_[parameter]], length, [&](int64_t from, int64_t to) {
          return hash_of_products(gradients + offset + from, factor, to - from, first + from);
        });
      });
    }
  }
}

// `values`: of the shard.
void StepHashes::add_shard(Sums& sums, const Shard& shard, const at::Tensor& values, uint32_t salt) {
  for (const int parameter : store_->layout(shard.bucket).parameters) {
    const auto [begin, numel] =
        overlap(store_->range_in_slice(parameter, shard.rank), {shard.begin, values.numel()});
    if (numel == 0) continue;
    const int64_t first = store_->index_in_parameter(parameter, shard.rank, begin);
    add(sums, parameter, run_of(values, begin - shard.begin, numel), first, salt);
  }
}

void StepHashes::look_at(const Shard& shard) {
  if (!is_left_out(shard)) add_shard(before_, shard, on_host(shard.values), kOfValues);
}

void StepHashes::add_values(const Shard& shard) {
  is_updated_ = true;
  if (is_left_out(shard)) return;
  const at::Tensor updated = on_host(shard.values);
  add_shard(after_, shard, updated, kOfValues);
  if (!buckets_->masters().are_rounded()) return;
  add_shard(values_, shard, updated, kOfMaster);
  add_shard(values_, shard, on_host(shard.rounded), kOfValues);
}

void StepHashes::share_step() {
  if (is_updated_ && !buckets_->masters().are_rounded()) {
    for (size_t place = 0; place < trained_; ++place) values_[place] += after_[place];
  }
  std::vector<uint64_t> sums;
  for (const Sums* each : {&gradients_, &values_})
    sums.insert(sums.end(), each->begin(), each->begin() + static_cast<int64_t>(trained_));
  for (size_t place = 0; place < trained_; ++place)
    sums.push_back(is_updated_ && !left_.empty() && before_[place] != left_[place] ? 1 : 0);
  all_reduce(sums, "hashes of gradients and values");
  const std::span<const uint64_t> all = sums;
  shared_gradients_ = text_of(all.first(trained_));
  shared_values_ = is_updated_ ? text_of(all.subspan(trained_, trained_)) : "";
  written_.clear();
  for (size_t place = 0; place < trained_; ++place) {
    if (all[2 * trained_ + place] > 0) written_.push_back(static_cast<int64_t>(place));
  }
  if (is_updated_) left_.assign(after_.begin(), after_.end());
}

// As halves, whose sums do not overflow.
void StepHashes::all_reduce(std::span<uint64_t> sums, const std::string& label) {
  if (sums.empty()) return;
  const auto numel = static_cast<int64_t>(sums.size());
  const at::Tensor all = at::empty({2 * numel}, at::kLong);
  int64_t* halves = all.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < numel; ++i) {
    halves[i] = static_cast<int64_t>(sums[i] & 0xffffffffU);
    halves[numel + i] = static_cast<int64_t>(sums[i] >> 32);
  }
  mesh_->world().all_reduce(all, label)->wait();
  for (int64_t i = 0; i < numel; ++i)
    sums[i] = static_cast<uint64_t>(halves[i]) + (static_cast<uint64_t>(halves[numel + i]) << 32);
}

void StepHashes::add_to(StepRecord& record) const {
  record.written = written_;
  record.gradients = shared_gradients_;
  record.values = shared_values_;
}

}  // namespace zerorun
