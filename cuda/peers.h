// What ranks must know of each other before they connect over NCCL: who runs where, on which GPU, with which
// NCCL. Found out here, it is an error with names; NCCL itself would fail in its own words, or hang.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "cuda/nccl_library.h"

namespace zerorun {

struct Peer {
  std::string host;  // its name
  std::string boot;  // what tells machines of one name apart
  std::string gpu;   // PCI address: "0000:3b:00.0"
  int nccl_version = 0;
  bool several_communicators = false;  // it can use them at once
  bool own_memory = false;             // NCCL can allocate memory that it moves fastest
};

/// This machine's name, and what changes when it starts.
Peer this_machine();

/// Tells the other ranks about `mine`; what they tell, by rank. A collective of `control`.
std::vector<Peer> exchange_peers(Communicator& control, const Peer& mine);

/// Ranks that share a GPU with another. Throws UserError where NCCL cannot do that, or where ranks have NCCL
/// in different versions.
bool check_peers(const std::vector<Peer>& peers, const NcclFeatures& features);

}  // namespace zerorun
