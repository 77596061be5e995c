// Checks before ranks connect over NCCL: each rank's host, GPU and NCCL version. Errors from here name the
// ranks and hosts; NCCL itself would fail with its own message, or hang.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "cuda/nccl_library.h"

namespace zerorun {

struct Peer {
  std::string host;  // host name
  std::string boot;  // the kernel's boot id, which distinguishes machines of the same name
  std::string gpu;   // PCI address: "0000:3b:00.0"
  int nccl_version = 0;
  bool several_communicators = false;  // it can use several communicators at once
  bool nccl_mem_alloc = false;         // ncclMemAlloc() works
};

/// A Peer with this machine's host name and boot id.
Peer this_machine();

/// Sends `mine` to the other ranks and returns every rank's Peer, by rank. A collective of `control`.
std::vector<Peer> exchange_peers(Communicator& control, const Peer& mine);

/// Whether any ranks share a GPU. Throws UserError if NCCL does not support that, or if the ranks' NCCL
/// versions differ.
bool check_peers(const std::vector<Peer>& peers, const NcclFeatures& features);

}  // namespace zerorun
