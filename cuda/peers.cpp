#include "cuda/peers.h"

#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <type_traits>

#include "base/error.h"
#include "comm/deadline.h"

namespace zerorun {
namespace {

// A Peer in the form in which it is sent to other ranks.
struct Packed {
  std::array<char, 64> host;
  std::array<char, 40> boot;
  std::array<char, 24> gpu;
  int32_t nccl_version;
  int32_t several_communicators;
  int32_t nccl_mem_alloc;
  int32_t registration;
};
static_assert(std::is_trivially_copyable_v<Packed>);

template <size_t N>
void pack(std::array<char, N>& to, const std::string& text) {
  to.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), N - 1), to.begin());
}

Packed packed(const Peer& peer) {
  Packed result{};
  pack(result.host, peer.host);
  pack(result.boot, peer.boot);
  pack(result.gpu, peer.gpu);
  result.nccl_version = peer.nccl_version;
  result.several_communicators = peer.several_communicators;
  result.nccl_mem_alloc = peer.nccl_mem_alloc;
  result.registration = static_cast<int32_t>(peer.registration);
  return result;
}

Peer unpacked(const Packed& packed) {
  return {packed.host.data(),
          packed.boot.data(),
          packed.gpu.data(),
          packed.nccl_version,
          packed.several_communicators != 0,
          packed.nccl_mem_alloc != 0,
          static_cast<NcclRegistration>(packed.registration)};
}

void check_versions(const std::vector<Peer>& peers) {
  for (size_t rank = 1; rank < peers.size(); ++rank) {
    if (peers[rank].nccl_version == peers[0].nccl_version) continue;
    throw UserError("all ranks need the same version of NCCL: rank 0 on " + peers[0].host + " has " +
                    nccl_version_text(peers[0].nccl_version) + ", rank " + std::to_string(rank) + " on " +
                    peers[rank].host + " has " + nccl_version_text(peers[rank].nccl_version));
  }
}

void check_registrations(const std::vector<Peer>& peers) {
  for (size_t rank = 1; rank < peers.size(); ++rank) {
    if (peers[rank].registration == peers[0].registration) continue;
    throw UserError("all ranks need the same ZERORUN_NCCL_REGISTER: rank 0 on " + peers[0].host + " has " +
                    name_of(peers[0].registration) + ", rank " + std::to_string(rank) + " on " +
                    peers[rank].host + " has " + name_of(peers[rank].registration));
  }
}

}  // namespace

Peer this_machine() {
  Peer mine;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) mine.host = name.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> mine.boot;
  return mine;
}

std::vector<Peer> exchange_peers(Communicator& control, const Peer& mine) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Packed));
  at::Tensor own = at::zeros({kBytes}, at::TensorOptions().dtype(at::kByte));
  at::Tensor all = at::zeros({kBytes * control.world_size()}, at::TensorOptions().dtype(at::kByte));
  const Packed out = packed(mine);
  std::memcpy(own.mutable_data_ptr(), &out, sizeof out);
  control.all_gather(all, own, "what GPU each rank has")->wait();
  std::vector<Peer> peers;
  for (int rank = 0; rank < control.world_size(); ++rank) {
    Packed in;
    std::memcpy(&in, static_cast<const char*>(all.const_data_ptr()) + rank * kBytes, sizeof in);
    peers.push_back(unpacked(in));
  }
  return peers;
}

bool check_peers(const std::vector<Peer>& peers, const NcclFeatures& features) {
  check_versions(peers);
  check_registrations(peers);
  std::map<std::array<std::string, 3>, std::vector<int>> ranks_of_gpu;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    ranks_of_gpu[{peers[rank].host, peers[rank].boot, peers[rank].gpu}].push_back(static_cast<int>(rank));
  }
  const auto shared =
      std::ranges::find_if(ranks_of_gpu, [](const auto& gpu) { return gpu.second.size() > 1; });
  if (shared == ranks_of_gpu.end()) return false;
  if (features.shared_gpus) return true;
  throw UserError(
      name_ranks(shared->second) + " share the GPU " + shared->first[2] + " of " + shared->first[0] +
      ", which NCCL " + nccl_version_text(features.version) +
      " does not support: run one rank per GPU (--num_gpus, and CUDA_VISIBLE_DEVICES must show every rank a "
      "GPU of its own), train on the CPU (--device cpu), or install NCCL 2.30 or later");
}

}  // namespace zerorun
