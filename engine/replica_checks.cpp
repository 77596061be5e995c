#include "engine/replica_checks.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <span>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "comm/agreement.h"

namespace zerorun {
namespace {

int64_t checksum_of(const StateTensor& kept) {
  const at::Tensor values = kept.own.cpu().contiguous();
  return static_cast<int64_t>(
      checkpoint::checksum_of({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}));
}

// Of each bucket: of what its update starts from, master weights or values; 0 if that is in files.
at::Tensor checksums_of(const EngineState& state) {
  at::Tensor checksums = at::empty({state.store.count()}, at::kLong);
  for (int bucket = 0; bucket < state.store.count(); ++bucket) {
    const bool has_master = state.buckets.masters().has(bucket);
    const bool in_files =
        has_master ? state.store.has_in_files(bucket) : state.store.has_values_in_files(bucket);
    checksums.mutable_data_ptr<int64_t>()[bucket] =
        in_files ? 0 : checksum_of(state.store.at(bucket, has_master ? kMaster : kValue));
  }
  return checksums.to(state.mesh.world().device().location());
}

}  // namespace

void check_replicas_agree(EngineState& state, const std::string& call) {
  if (!state.mesh.has_replicas()) return;
  const at::Tensor own = checksums_of(state);
  const at::Tensor firsts = own.clone();
  state.mesh.replicas().broadcast(firsts, 0, "checksums of the first replica")->wait();
  const at::Tensor ours = own.cpu(), theirs = firsts.cpu();
  on_all_ranks(state.mesh.world(), "the comparison of replicas", [&] {
    for (int bucket = 0; bucket < state.store.count(); ++bucket) {
      if (ours.const_data_ptr<int64_t>()[bucket] == theirs.const_data_ptr<int64_t>()[bucket]) continue;
      throw UserError(
          call + "(): replica " + std::to_string(state.mesh.replica()) + " has other values of " +
          state.buckets.label(bucket) +
          " than the first one (zerorun.mesh.replicate): write the same values to parameters on all "
          "ranks, as with the same seed, or leave replicate out");
    }
  });
}

}  // namespace zerorun
