#include "tests/comm/collective_script.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

namespace zerorun::testing {
namespace {

constexpr int64_t kSliceSizes[] = {0, 1, 16, 1000, 5000};

// Returns values of very different magnitudes, so that another order of addition gives other bits.
template <typename T>
T value_of(int rank, int64_t seed, int64_t index) {
  uint64_t bits = static_cast<uint64_t>(rank + 1) * 0x9e3779b97f4a7c15ULL ^
                  static_cast<uint64_t>(seed * 1'000'003 + index + 1) * 0xc2b2ae3d27d4eb4fULL;
  bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9ULL;
  bits ^= bits >> 32;
  const auto mantissa = static_cast<int64_t>(bits & 0xffffff) - 0x800000;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(mantissa) << 30;
  // 16-bit values are at most 2^8, so that sums over ranks fit into fp16.
  if constexpr (sizeof(T) == 2)
    return std::ldexp(static_cast<float>(mantissa), static_cast<int>(bits >> 60) - 30);
  return static_cast<T>(std::ldexp(static_cast<double>(mantissa), static_cast<int>(bits >> 60)));
}

template <typename T>
std::vector<T> values_of(int rank, int64_t seed, int64_t numel) {
  std::vector<T> values(numel);
  for (int64_t i = 0; i < numel; ++i) values[i] = value_of<T>(rank, seed, i);
  return values;
}

// Adds in rank order, or in groups of ranks and then over these; 16-bit values are added in float32, and the
// sum of each group is rounded.
template <typename T>
std::vector<T> sum_of_ranks(const std::vector<int>& groups, int64_t seed, int64_t numel) {
  using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
  std::vector<T> total;
  for (int64_t i = 0; i < numel; ++i) {
    Sum sum = 0;
    int rank = 0;
    for (const int ranks : groups) {
      Sum of_group = value_of<T>(rank++, seed, i);
      for (int other = 1; other < ranks; ++other) of_group += value_of<T>(rank++, seed, i);
      const Sum rounded = static_cast<Sum>(static_cast<T>(of_group));
      sum = rank == ranks ? rounded : sum + rounded;
    }
    total.push_back(static_cast<T>(sum));
  }
  return total;
}

template <typename T>
std::vector<T> gathered(int world_size, int64_t seed, int64_t slice) {
  std::vector<T> all;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<T> part = values_of<T>(rank, seed, slice);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

template <typename T>
std::vector<T> slice_of(const std::vector<T>& values, int rank, int64_t slice) {
  return {values.begin() + rank * slice, values.begin() + (rank + 1) * slice};
}

// Uses append(), since g++ 12 with AddressSanitizer gives a false warning for operator+ of two strings here.
std::string numbered(std::string text, int number) {
  return text.append(std::to_string(number));
}

class Script {
 public:
  Script(Communicator& communicator, ScriptMemory memory, int sum_group)
      : comm_(communicator), memory_(memory), rank_(communicator.rank()), world_(communicator.world_size()) {
    if (sum_group == 0) sum_group = world_;
    for (int left = world_; left > 0; left -= sum_group) groups_.push_back(std::min(left, sum_group));
  }

  std::string run() {
    run_type<float>("float32");
    run_type<double>("float64");
    run_type<int64_t>("int64");
    run_type<at::BFloat16>("bfloat16");
    run_type<at::Half>("float16");
    many_under_way();
    comm_.barrier("the end")->wait();
    check_volume();
    return wrong_.empty() ? std::to_string(right_) + " results right" : wrong_;
  }

 private:
  at::Tensor empty(int64_t numel, at::ScalarType dtype) {
    const bool own = memory_ == ScriptMemory::own || (memory_ == ScriptMemory::both && ++tensors_ % 2 == 0);
    return own ? at::empty({numel}, at::TensorOptions().dtype(dtype)) : comm_.allocate(numel, dtype);
  }

  template <typename T>
  at::Tensor tensor_of(const std::vector<T>& values) {
    at::Tensor tensor = empty(static_cast<int64_t>(values.size()), at::CppTypeToScalarType<T>());
    std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
    return tensor;
  }

  template <typename T>
  void run_type(const std::string& type) {
    all_reduces_much<T>(" of " + type);
    for (int64_t slice : kSliceSizes) {
      const std::string size = " of " + type + " x " + std::to_string(slice);
      reduce_scatters<T>(size, slice);
      all_gathers<T>(size, slice);
      at::Tensor tensor = tensor_of(values_of<T>(rank_, ++seed_, slice));
      comm_.all_reduce(tensor, "script")->wait();
      expect("all_reduce" + size, tensor, sum_of_ranks<T>(groups_, seed_, slice));
      for (int root = 0; root < world_; ++root) {
        tensor = tensor_of(values_of<T>(rank_, ++seed_, slice));
        comm_.broadcast(tensor, root, "script")->wait();
        expect("broadcast" + size, tensor, values_of<T>(root, seed_, slice));
      }
    }
  }

  // Large enough to be summed in two steps, in every dtype; the elements do not divide among the ranks.
  template <typename T>
  void all_reduces_much(const std::string& type) {
    constexpr int64_t kNumel = kLargeSum / 2 + 61;
    at::Tensor tensor = tensor_of(values_of<T>(rank_, ++seed_, kNumel));
    comm_.all_reduce(tensor, "script")->wait();
    expect("large all_reduce" + type, tensor, sum_of_ranks<T>(groups_, seed_, kNumel));
  }

  template <typename T>
  void reduce_scatters(const std::string& size, int64_t slice) {
    std::vector<T> mine = values_of<T>(rank_, ++seed_, slice * world_);
    const auto wanted = slice_of(sum_of_ranks<T>(groups_, seed_, slice * world_), rank_, slice);
    at::Tensor input = tensor_of(mine);
    at::Tensor output = empty(slice, input.scalar_type());
    comm_.reduce_scatter(output, input, "script")->wait();
    expect("reduce_scatter" + size, output, wanted);
    expect("reduce_scatter" + size + ": the input", input, mine);

    comm_.reduce_scatter(input.narrow(0, rank_ * slice, slice), input, "script")->wait();
    std::copy(wanted.begin(), wanted.end(), mine.begin() + rank_ * slice);
    expect("reduce_scatter in place" + size, input, mine);
  }

  template <typename T>
  void all_gathers(const std::string& size, int64_t slice) {
    const auto mine = values_of<T>(rank_, ++seed_, slice);
    const auto wanted = gathered<T>(world_, seed_, slice);
    at::Tensor input = tensor_of(mine);
    at::Tensor output = empty(slice * world_, input.scalar_type()).zero_();
    comm_.all_gather(output, input, "script")->wait();
    expect("all_gather" + size, output, wanted);
    expect("all_gather" + size + ": the input", input, mine);

    output.zero_();
    at::Tensor own = output.narrow(0, rank_ * slice, slice);
    own.copy_(input);
    comm_.all_gather(output, own, "script")->wait();
    expect("all_gather in place" + size, output, wanted);
  }

  // Starts twelve collectives of several kinds and sizes, then waits for them. Does so three times: waits in
  // order, in reverse order, and in shuffled order.
  void many_under_way() {
    constexpr int kCount = 12;
    for (int order = 0; order < 3; ++order) {
      std::vector<std::unique_ptr<Work>> works;
      std::vector<at::Tensor> outputs;
      std::vector<std::vector<float>> wanted;
      for (int i = 0; i < kCount; ++i) {
        const int64_t slice = 7 + 500 * (i % 5);
        ++seed_;
        const std::string label = numbered("bucket ", i);
        if (i % 3 == 0) {
          at::Tensor input = tensor_of(values_of<float>(rank_, seed_, slice * world_));
          outputs.push_back(empty(slice, at::kFloat));
          works.push_back(comm_.reduce_scatter(outputs.back(), input, label));
          wanted.push_back(slice_of(sum_of_ranks<float>(groups_, seed_, slice * world_), rank_, slice));
        } else if (i % 3 == 1) {
          outputs.push_back(empty(slice * world_, at::kFloat));
          works.push_back(
              comm_.all_gather(outputs.back(), tensor_of(values_of<float>(rank_, seed_, slice)), label));
          wanted.push_back(gathered<float>(world_, seed_, slice));
        } else {
          outputs.push_back(tensor_of(values_of<float>(rank_, seed_, slice)));
          works.push_back(comm_.all_reduce(outputs.back(), label));
          wanted.push_back(sum_of_ranks<float>(groups_, seed_, slice));
        }
      }
      for (int i = 0; i < kCount; ++i)
        works[order == 0 ? i : order == 1 ? kCount - 1 - i : i * 5 % kCount]->wait();
      for (int i = 0; i < kCount; ++i) expect(numbered("under way, number ", i), outputs[i], wanted[i]);
    }
  }

  void check_volume() {
    Volume& volume = comm_.volume();
    volume.reset();
    const int64_t slice = 30;
    at::Tensor part = at::ones({slice});
    at::Tensor whole = at::ones({slice * world_});
    comm_.reduce_scatter(part, whole, "volume")->wait();
    comm_.reduce_scatter(part, whole, "volume")->wait();
    comm_.all_gather(whole, part, "volume")->wait();
    comm_.all_reduce(part, "volume")->wait();
    comm_.broadcast(part, world_ - 1, "volume")->wait();
    comm_.barrier("volume")->wait();
    const int others = world_ - 1;
    const bool root = rank_ == world_ - 1;
    // A reduce-scatter sends (N-1)/N of the N x 30 elements of `whole`, that is, (N-1) x 30, and it has run
    // twice. The other collectives send the 30 elements of `part` to N-1 ranks.
    expect_volume(Collective::reduce_scatter, 2 * others * 30);
    expect_volume(Collective::all_gather, others * 30);
    expect_volume(Collective::all_reduce, others * 30);
    expect_volume(Collective::broadcast, root ? others * 30 : 0);
    expect_volume(Collective::barrier, 0);
    volume.reset();
    expect_volume(Collective::reduce_scatter, 0);
  }

  void expect_volume(Collective kind, double wanted) {
    const double got = comm_.volume().elements(kind);
    note(std::abs(got - wanted) < 1e-6,
         std::string("volume of ") + name_of(kind) + ": " + std::to_string(got));
  }

  template <typename T>
  void expect(const std::string& what, const at::Tensor& got, const std::vector<T>& wanted) {
    note(got.numel() == static_cast<int64_t>(wanted.size()) &&
             (wanted.empty() ||
              std::memcmp(got.const_data_ptr(), wanted.data(), wanted.size() * sizeof(T)) == 0),
         what);
  }

  void note(bool holds, const std::string& what) {
    if (holds) {
      ++right_;
    } else {
      wrong_ += "rank " + std::to_string(rank_) + ": wrong " + what + "\n";
    }
  }

  Communicator& comm_;
  const ScriptMemory memory_;
  const int rank_;
  const int world_;
  std::vector<int> groups_;  // in which sums are added
  int64_t seed_ = 0;
  int tensors_ = 0;
  int right_ = 0;
  std::string wrong_;
};

}  // namespace

std::string run_collective_script(Communicator& communicator, ScriptMemory memory, int sum_group) {
  return Script(communicator, memory, sum_group).run();
}

std::string script_success(int world_size) {
  const int sizes = 5 * 5;                  // dtypes x slice sizes
  const int each = 3 + 3 + 1 + world_size;  // reduce-scatters, all-gathers, all-reduce, broadcasts
  return std::to_string(sizes * each + 5 + 3 * 12 + 6) + " results right";
}

}  // namespace zerorun::testing
