// Shared by the tests of buckets, gradients and residency: the parameters of one rank in buckets, and checks
// that throw, since rank-threads may not use Catch2's CHECK. Expected values are plain tensors.
#pragma once

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checksums.h"
#include "checkpoint/file_system.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "zero/buckets.h"
#include "zero/layout.h"
#include "zero/slice_store.h"

namespace zerorun::testing {

/// Alignment of parameters and slices in elements: 64 bytes of 16-bit values.
inline constexpr int64_t kAlignment = 32;

struct ParameterSpec {
  std::vector<int64_t> sizes;
  bool partitioned = false;
  int group = 0;  // or kFrozen; frozen parameters come last
};

inline std::string parameter_name(size_t index) {
  return c10::str("p", index);
}

/// A float32 tensor of `sizes` with the values first, first + 1, first + 2 ...
inline at::Tensor numbered(const std::vector<int64_t>& sizes, double first) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).add(first).view(sizes);
}

/// Rank 0's initial values of parameter number `index`, which Buckets broadcasts to all ranks.
inline at::Tensor given_values(const std::vector<ParameterSpec>& specs, int index) {
  return numbered(specs[index].sizes, 1000.0 * (index + 1));
}

inline Layout make_layout_of(const std::vector<ParameterSpec>& specs, int world_size, int64_t alignment,
                             int64_t bucket_numel) {
  std::vector<LayoutParameter> parameters;
  for (const ParameterSpec& spec : specs) {
    parameters.push_back({c10::multiply_integers(spec.sizes), spec.group, spec.partitioned});
  }
  return make_layout(parameters, world_size, alignment, bucket_numel);
}

inline std::vector<int64_t> numels_of(const std::vector<ParameterSpec>& specs) {
  std::vector<int64_t> numels;
  for (const ParameterSpec& spec : specs) numels.push_back(c10::multiply_integers(spec.sizes));
  return numels;
}

/// Parameters "p0", "p1" ... of one rank in buckets, made in the same order as in the engine. Before they
/// move into buckets, ranks other than 0 have other values than rank 0.
struct RankState {
  RankState(const std::vector<ParameterSpec>& specs, Communicator& communicator, const BucketOptions& options,
            int64_t bucket_numel = 1, bool values_in_files = false)
      : RankState(specs, leaves_of(specs, communicator.rank()), communicator, options, bucket_numel,
                  values_in_files) {}

  RankState(const std::vector<ParameterSpec>& specs, std::vector<at::Tensor> given,
            Communicator& communicator, const BucketOptions& options, int64_t bucket_numel,
            bool values_in_files = false)
      : leaves(std::move(given)),
        store(make_layout_of(specs, communicator.world_size(), kAlignment, bucket_numel), numels_of(specs),
              communicator.rank(), communicator.world_size()),
        buckets(named(specs, leaves), values_in_files ? with_values_in_files(specs, options.dtype) : store,
                communicator, options) {}

  SliceStore& with_values_in_files(const std::vector<ParameterSpec>& specs, Dtype dtype) {
    std::vector<std::string> names;
    for (size_t index = 0; index < specs.size(); ++index) names.push_back(parameter_name(index));
    std::vector<int> partitioned;
    for (int bucket = 0; bucket < store.count(); ++bucket) {
      if (store.layout(bucket).partitioned) partitioned.push_back(bucket);
    }
    const StateFilesOptions files{.folder = folder / "",
                                  .rank = store.rank(),
                                  .chunk_bytes = 4 * checkpoint::kChecksumBlock,
                                  .request_bytes = checkpoint::kChecksumBlock,
                                  .alignment = kAlignment};
    store.keep_values_in_files(checkpoint::local_file_system(), files, dtype, partitioned, names);
    return store;
  }

  static std::vector<at::Tensor> leaves_of(const std::vector<ParameterSpec>& specs, int rank) {
    std::vector<at::Tensor> leaves;
    for (size_t index = 0; index < specs.size(); ++index) {
      const at::Tensor values = given_values(specs, static_cast<int>(index)) - 0.5 * rank;
      leaves.push_back(values.clone().requires_grad_(specs[index].group != kFrozen));
    }
    return leaves;
  }

  static std::vector<NamedParameter> named(const std::vector<ParameterSpec>& specs,
                                           const std::vector<at::Tensor>& leaves) {
    std::vector<NamedParameter> parameters;
    for (size_t index = 0; index < specs.size(); ++index) {
      parameters.push_back({parameter_name(index), leaves[index], specs[index].group});
    }
    return parameters;
  }

  std::vector<at::Tensor> leaves;
  TemporaryFolder folder;
  SliceStore store;
  Buckets buckets;
};

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// Throws unless both tensors are equal. `found` may be a parameter that is in memory only during its uses,
/// because a single operator reads it.
inline void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  const at::Tensor values = found.detach().clone();
  expect(values.sizes() == expected.sizes(), what + ": other sizes");
  expect(values.scalar_type() == expected.scalar_type(), what + ": another type");
  if (at::equal(values, expected)) return;
  const at::Tensor differ = values.ne(expected);
  throw std::runtime_error(what + ": " +
                           c10::str(differ.sum().item<int64_t>(), " of ", values.numel(),
                                    " elements differ, the first is ",
                                    values.masked_select(differ)[0].item<double>(), ", not ",
                                    expected.masked_select(differ)[0].item<double>()));
}

/// Throws unless `action` throws an `Expected` whose message contains all `parts`.
template <typename Expected, typename Action>
void expect_throws(const Action& action, const std::vector<std::string>& parts, const std::string& what) {
  try {
    action();
  } catch (const Expected& error) {
    const std::string message = error.what();
    for (const std::string& part : parts) {
      expect(message.find(part) != std::string::npos,
             what + ": threw, but not about \"" + part + "\": " + message);
    }
    return;
  }
  throw std::runtime_error(what + ": did not throw");
}

/// Runs `body` on every rank and CHECKs that no rank throws.
template <typename Body>
void check_on_ranks(int ranks, bool shares_memory, const Body& body) {
  INFO(ranks << (shares_memory ? " ranks that share memory" : " ranks"));
  CHECK_NOTHROW(run_ranks(
      ranks, [&](const std::shared_ptr<Communicator>& communicator) { body(*communicator); },
      std::chrono::seconds(20), shares_memory));
}

template <typename Body>
void check_both_ways(int ranks, const Body& body) {
  for (const bool shares_memory : {false, true}) check_on_ranks(ranks, shares_memory, body);
}

}  // namespace zerorun::testing
