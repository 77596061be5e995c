// The communicator of ranks on several hosts, with two levels: ranks of a host sum and share in their host's
// communicator (shared memory), and only one rank per host and slice exchanges with the other hosts. So what
// crosses the network is 1/L of what ranks would send that all talk to each other, with L ranks per host, and
// a rank has as many connections as there are other hosts.
//
//   reduce-scatter   each rank sums, over the ranks of its host, the slices of all ranks with its place on
//   their
//                    hosts; then these ranks add the hosts' sums, in the order of hosts
//   all-gather       ranks with one place on their hosts gather their slices; then ranks of a host do, or put
//                    them into the output that they share (Communicator::allocate_shared())
//   all-reduce       summed on the host, then over hosts
//   broadcast        over the hosts, by ranks with the root's place on their hosts; then on each host
//
// So sums are those of Communicator::set_sum_group() with the number of ranks on a host.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/notices.h"

namespace zerorun {

struct Levels {
  /// The ranks of this rank's host.
  std::shared_ptr<Communicator> host;
  /// The ranks that have this rank's place on their hosts, in the order of hosts.
  std::shared_ptr<Communicator> across;
};

/// Makes the board of these ranks that has this name.
using OpenNotices = std::function<std::unique_ptr<Notices>(const std::string& name)>;

/// `ranks`: the ranks of all hosts, as numbers in the job: those of the first host first, and as many of
/// each. Its name is empty if these are all ranks of the job.
std::shared_ptr<Communicator> make_two_level_communicator(Levels levels, RankGroup ranks,
                                                          OpenNotices open_notices);

}  // namespace zerorun
