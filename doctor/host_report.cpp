#include "doctor/host_report.h"

#include <utility>

#include "doctor/gpus.h"
#include "doctor/host_system.h"
#include "doctor/nccl.h"
#include "doctor/network.h"
#include "doctor/resource_limits.h"

namespace zerorun::doctor {

Findings examine_host(int local_ranks, int world_size) {
  const Gpus gpus = read_gpus();
  const Network network = read_network();
  const Demand demand = {local_ranks, world_size, !network.rdma_cards.empty()};
  Findings nccl;
  if (!gpus.gpus.empty()) nccl.push_back(judge_nccl(read_nccl()));
  Findings all = {build_versions()};
  for (Findings part : {judge_host_system(read_host_system(), static_cast<int>(gpus.gpus.size())),
                        judge_gpus(gpus, local_ranks), nccl, judge_limits(read_limits(), demand),
                        judge_network(network, world_size > local_ranks)}) {
    for (Finding& finding : part) all.push_back(std::move(finding));
  }
  return all;
}

}  // namespace zerorun::doctor
