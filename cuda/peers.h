// Compares the ranks' hosts, GPUs and NCCL versions before they connect over NCCL. Its errors name the ranks
// and hosts, whereas NCCL itself would fail with a general message or hang.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "cuda/nccl_library.h"
#include "cuda/nccl_registration.h"

namespace zerorun {

struct Peer {
  std::string host;  // host name
  std::string boot;  // boot id of the kernel, which differs between machines with the same host name
  std::string gpu;   // PCI address, such as "0000:3b:00.0"
  int nccl_version = 0;
  bool several_communicators = false;  // whether the rank can use two communicators at once
  bool nccl_mem_alloc = false;         // whether ncclMemAlloc() works
  NcclRegistration registration = NcclRegistration::none;
};

/// Returns a Peer with this machine's host name and boot id.
Peer this_machine();

/// Sends `mine` to the other ranks and returns the Peers of all ranks, by rank. A collective of `control`.
std::vector<Peer> exchange_peers(Communicator& control, const Peer& mine);

/// Returns whether any ranks share a GPU. Throws UserError if they do and NCCL does not support that, or if
/// the ranks differ in the version of NCCL or in the memory that they register.
bool check_peers(const std::vector<Peer>& peers, const NcclFeatures& features);

}  // namespace zerorun
