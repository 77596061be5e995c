// Collectives among ranks. Each rank owns one Communicator, and any of its threads may start a collective. If
// several threads do, each must start its first collective before another thread waits. Otherwise a long wait
// may be reported as a disagreement between ranks (comm/gloo/order_watch.h). All ranks must start the
// collectives of each kind in the same order, with the same labels. A collective returns a Work and owns its
// tensors until Work::wait() returns. Sums over CPU tensors are added in rank order, or in groups of ranks
// and then over the groups (set_sum_group()), so their bits depend neither on bucket sizes nor on timing.
// Every wait has a deadline; a missed deadline throws CommError, which names the collective, its label and
// the missing ranks.
//
// Messages (send() and receive()) have an order of their own for each pair of ranks (comm/message.h).
//
// Tensors are on the communicator's device or on the CPU. On a device with streams a collective runs on the
// current stream of the calling thread, like any operator. wait() then only checks that the communicator
// still works; other streams wait for events (device/streams.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "comm/message.h"
#include "device/device.h"

namespace zerorun {

enum class Collective { reduce_scatter, all_gather, all_reduce, broadcast, barrier };
inline constexpr int kCollectiveKinds = 5;
/// The size in bytes from which an all-reduce of a CPU tensor is a reduce-scatter and an all-gather.
inline constexpr int64_t kLargeSum = 128 << 10;
const char* name_of(Collective collective);

/// The sizes of groups of consecutive ranks whose sums are added in order; null: all ranks in one order.
using SumGroups = std::shared_ptr<const std::vector<int>>;

/// A collective with its arguments. `label` ("bucket 3") must be the same on all ranks. `reason` ("for
/// aten::addmm on h.0.weight") appears only in errors and may differ between ranks.
struct CollectiveCall {
  Collective kind;
  at::Tensor output;
  at::Tensor input;
  int root;
  std::string label;
  std::string reason;
  SumGroups sum_groups = {};

  /// For sum_in_rank_order().
  std::span<const int> groups() const {
    return sum_groups ? std::span<const int>(*sum_groups) : std::span<const int>();
  }
};

/// Returns a text such as "all_gather of bucket 3 for aten::addmm on h.0.weight".
std::string describe(const CollectiveCall& call);
/// Returns a text such as "ranks disagree on the next collective: rank 0 is in all_gather of bucket 3, rank 1
/// in all_gather of bucket 4".
std::string describe_disagreement(int rank, const std::string& mine, int other_rank,
                                  const std::string& theirs);

/// Some of the ranks of a communicator, which form a communicator of their own.
struct RankGroup {
  std::string name;        // for messages, such as "data group at tensor 1"; empty: all of the job
  std::vector<int> ranks;  // ascending
};
/// Returns a text such as "data group at tensor 1 (ranks 1, 3)".
std::string describe(const RankGroup& group);

/// Throws CommError if this process was forked from rank `rank`. `what` names the refused operation in the
/// message.
void check_not_forked(const HomeProcess& home, int rank, const std::string& what);

/// A started collective or message.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the output is complete and the input may be written again. Must be called exactly once: the
  /// tensors of a Work that is destroyed without wait() are in an unknown state. Throws CommError.
  virtual void wait() = 0;
  // For a thread that waits on behalf of others, which may not wait yet. One thread at a time, before wait().

  /// Whether wait() would not have to wait. Does this rank's part, as wait() does.
  virtual bool is_over() { return false; }
  /// True if is_over() cannot tell without waiting. wait_patiently() and give_up() are for such a Work.
  virtual bool waits_patiently() const { return false; }
  /// Like wait(), without a deadline.
  virtual void wait_patiently() { wait(); }
  /// Makes wait_patiently() end as wait() does at its deadline. In another thread.
  virtual void give_up() {}
};

/// Counts the elements that this rank sends, by kind of collective. With shared memory it counts the elements
/// that the rank would send over a network. A reduce-scatter or all-gather of n elements counts (N-1)/N * n,
/// a broadcast (N-1) * n on the root. An all-reduce counts (N-1) * n, or what the reduce-scatter and the
/// all-gather count that it is made of. A message counts its elements on the sender. Each communicator has
/// its own counters.
class Volume {
 public:
  void add(const CollectiveCall& call, int rank, int world_size);
  void add(const MessageCall& call);
  double elements(Collective kind) const { return elements_[static_cast<size_t>(kind)]; }
  double elements_of_messages() const { return sent_; }
  void reset() { *this = {}; }

 private:
  std::array<double, kCollectiveKinds> elements_{};
  double sent_ = 0;
};

class CommunicationLog;
class Notices;

class Communicator {
 public:
  /// `device` must outlive the communicator.
  Communicator(int rank, int world_size, std::chrono::milliseconds timeout, Device& device = cpu_device());
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  /// The ranks of this communicator as numbers in the whole job: `ranks[r]` is rank r here.
  const RankGroup& group_of_ranks() const { return group_; }
  /// The number of rank `rank` of this communicator in the whole job.
  int rank_in_job(int rank) const { return group_.ranks[static_cast<size_t>(rank)]; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  Device& device() const { return *device_; }
  /// Whether this rank is the first on its host. If the ranks are threads or a part of the job, this is true
  /// only for rank 0.
  bool is_first_on_host() const { return is_first_on_host_; }
  /// Called by the function that creates the communicator, if it knows the ranks' hosts.
  void set_first_on_host(bool is_first) { is_first_on_host_ = is_first; }

  /// Allocates a zero-filled 1-D tensor on the device, in the memory from which this communicator sends
  /// fastest. All ranks must allocate the same sizes in the same order.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype);
  /// Allocates a zero-filled 1-D tensor in memory that all ranks share. Collectives order the ranks'
  /// accesses. A broadcast() of this tensor copies nothing: it only waits until all ranks have started it.
  /// The same holds for an all_gather() into this tensor if its input is this rank's slice of the tensor,
  /// which it must be. If the ranks are on several hosts (ranks_sharing()), each host has a tensor of its
  /// own, and these two give each host what the others have. Returns an undefined tensor if the ranks share
  /// no memory or there is no room. A collective.
  virtual at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype);
  /// Returns a tensor with the values of `shared`, which is from allocate_shared(); later writes to the
  /// returned tensor are private to this rank. Afterwards no rank may write to `shared`.
  virtual at::Tensor make_own(const at::Tensor& shared);
  /// Returns to the system the pages that lie wholly in `part`, which is a part of a tensor from
  /// allocate_shared(). These pages read as zeros until a rank writes to them.
  virtual void give_back_pages(const at::Tensor& part);
  /// Whether the ranks share memory. If they do, allocate_shared() fails only for lack of room.
  virtual bool shares_memory() const { return false; }
  /// How many ranks share what allocate_shared() returns: all, or those of a host. 1: none do.
  virtual int ranks_sharing() const { return shares_memory() ? world_size_ : 1; }
  /// Whether `tensor` is from allocate_shared(), and this rank has not made it its own.
  virtual bool is_shared(const at::Tensor& /*tensor*/) const { return false; }
  /// What carries CPU tensors, for messages: "Gloo".
  virtual std::string transport() const { return shares_memory() ? "shared memory" : "Gloo"; }
  /// From now on sums over CPU tensors first add the ranks whose numbers in the job, divided by `ranks` and
  /// rounded down, are equal, and then these sums in order; those of 16-bit types are rounded. So the bits
  /// are equal for an equal `ranks`, on all transports but NCCL. 0: the transport's own choice, one order of
  /// all ranks. The same on all ranks, while no collective is in flight. Later parts, made by split(), take
  /// it over.
  virtual void set_sum_group(int ranks);
  /// The number of consecutive ranks of the job that sums over CPU tensors add first; 0: one order of all
  /// ranks.
  virtual int sum_group() const { return sum_groups_ ? sum_group_ : 0; }
  /// The sizes of these groups, consecutive ranks of this communicator; empty: one order of all ranks.
  virtual std::vector<int> sum_groups() const { return sum_groups_ ? *sum_groups_ : std::vector<int>(); }

  /// Makes a communicator of each of `groups`, and returns the one of this rank's group. `groups` is the same
  /// on all ranks of this communicator, each of which is in exactly one group: ranks are numbers in this
  /// communicator. A wait in any of these communicators does this rank's part in all of them. Ranks in
  /// messages are those of the whole job. A collective. Throws UserError if `groups` is no such partition.
  std::shared_ptr<Communicator> split(const std::vector<RankGroup>& groups);

  /// Tells all ranks of the job that this rank cannot go on, and why. Their waits on the CPU, in all groups,
  /// then end with a CommError that has the text of the first announcement: within half a second, over Gloo
  /// within a second or two (more with hundreds of ranks). Over Gloo rank 0 returns, or throws that error, a
  /// second later than others: the store that has the text ends with it. Any of the job's communicators may
  /// be called. Never throws.
  virtual void announce_failure(const std::string& /*error*/) noexcept {}

  /// The text that a rank of the job has announced, as far as this communicator's transport can ask for it at
  /// once; empty: none. Takes at most 0.5 s, plus kTimeToAnswer if the store does not answer. Never throws.
  virtual std::string announced_failure() noexcept { return {}; }
  /// Tells ranks that will miss this one, in any group, what it has failed in. Never throws.
  virtual void note_failure(const std::string& /*error*/) noexcept {}
  /// From now on the timeline and the log do not show what this rank starts: another communicator does.
  void set_unrecorded() { is_recorded_ = false; }

  /// Opens a board on which ranks post short texts outside of collectives (comm/notices.h). All ranks must
  /// open their boards in the same order.
  virtual std::unique_ptr<Notices> open_notices() = 0;
  /// The size in bytes of the buffers that this rank keeps for collectives; over shared memory, for those of
  /// all its groups.
  virtual int64_t scratch_bytes() const { return 0; }

  // Collectives take 1-D, contiguous tensors.

  /// output = the sum over all ranks r of slice `rank` of rank r's input. The output is as long as one slice,
  /// and may be slice `rank` of this rank's `input`.
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, std::string label);
  /// Slice r of `output` = the input of rank r. `input` may be slice `rank` of `output`.
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, std::string label,
                                                 std::string reason = {});
  /// tensor = the sum of all ranks' tensors. Of a few scalars every rank sends its whole tensor to every
  /// other rank. A CPU tensor of kLargeSum bytes or more is reduce-scattered before this returns, which
  /// waits for all ranks, and the result is all-gathered: as many bytes as these two send.
  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor tensor, std::string label);
  /// tensor = the tensor of rank `root`.
  [[nodiscard]] std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, std::string label);
  [[nodiscard]] std::unique_ptr<Work> barrier(std::string label);

  // Messages take contiguous tensors of any shape. The nth send() to a rank and that rank's nth receive()
  // from this one must have the same number of elements, dtype and label: otherwise wait() throws CommError
  // on the receiver, and on the sender a wait() of this or of a later call. Both throw UserError if the other
  // rank is this one, or is not in this communicator.

  /// Prepares messages of tensors on the device between these pairs of ranks. A collective, with the same
  /// pairs on all ranks. Only GPUs need it, where connections are made for it; elsewhere it does nothing.
  virtual void open_messages(const std::vector<std::pair<int, int>>& /*pairs*/) {}
  /// Sends `tensor` to rank `receiver`. Neither send() nor wait() waits for the receiver, and the tensor may
  /// be written again after wait(). Only if more is on the way to that rank than comm/message.h allows, does
  /// send() wait until there is room. Throws CommError if there is none by the deadline.
  [[nodiscard]] std::unique_ptr<Work> send(at::Tensor tensor, int receiver, std::string label);
  /// tensor = the tensor of the message from rank `sender`. May be called long before the message is sent:
  /// the deadline starts with wait().
  [[nodiscard]] std::unique_ptr<Work> receive(at::Tensor tensor, int sender, std::string label);

  /// Combines the collectives that `body` starts on one stream into a single operation where the backend can,
  /// which reduces overhead. The collectives are enqueued only when as_one() returns: do not record events
  /// after them, or wait for them, before that. Meanwhile other threads must not start collectives. Groups do
  /// not nest.
  template <typename Body>
  void as_one(const Body& body) {
    Group group(*this);
    body();
    group.close();
  }

  /// Must not be called while another thread starts a collective.
  Volume& volume() { return volume_; }
  /// From now on records what this rank starts in `log`; null: nowhere. Under the same condition.
  void set_log(std::shared_ptr<CommunicationLog> log) { log_ = std::move(log); }

 protected:
  /// Makes the communicator of `groups[own]`, which this rank is in. `group` has the same ranks, as numbers
  /// in the job. A collective of this communicator. By default throws Error.
  virtual std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                                  RankGroup group);
  /// Called by the function that creates a communicator of a part of the job.
  void set_group(RankGroup group);
  /// The sizes of the groups that set_sum_group() would make; empty: all ranks in one order.
  std::vector<int> groups_of_sums(int ranks) const;

  /// Starts `call`, whose tensors have been checked. Called by one thread at a time. Several collectives may
  /// be in flight; each is completed by its own wait().
  virtual std::unique_ptr<Work> start(CollectiveCall call) = 0;
  /// Starts a message, under the same conditions. By default throws Error.
  virtual std::unique_ptr<Work> start_message(MessageCall call);
  /// Between open_group() and close_group(), start() may hold calls back. close_group() starts the held
  /// calls, or drops them if `abandoned`.
  virtual void open_group() {}
  virtual void close_group(bool /*abandoned*/) {}

 private:
  class Group {
   public:
    explicit Group(Communicator& communicator);
    ~Group();
    void close();

   private:
    Communicator& communicator_;
    std::unique_lock<std::recursive_mutex> lock_;
    bool open_ = true;
  };

  std::unique_ptr<Work> count_and_start(CollectiveCall call);
  std::unique_ptr<Work> count_and_start(MessageCall call);
  std::unique_ptr<Work> log_and_start(CollectiveCall call);
  std::unique_ptr<Work> log_and_start(MessageCall call);
  void check_place(const at::Tensor& tensor, const std::string& label) const;
  void add_suffix(std::string& label) const;
  std::unique_ptr<Work> all_reduce_in_two(const at::Tensor& tensor, const std::string& label);

  int rank_;
  int world_size_;
  RankGroup group_;
  std::string label_suffix_;  // names the group in labels; empty for all ranks
  std::chrono::milliseconds timeout_;
  Device* device_;
  bool is_first_on_host_;
  HomeProcess home_;
  int sum_group_ = 0;
  SumGroups sum_groups_;
  bool is_recorded_ = true;
  /// Held by count_and_start(), and by as_one(), whose calls lock it again.
  std::recursive_mutex issue_;
  Volume volume_;
  std::shared_ptr<CommunicationLog> log_;
  std::vector<uint64_t> sent_;      // by rank: the number of messages to it so far
  std::vector<uint64_t> received_;  // by rank: the number of messages that this rank has begun to receive
};

}  // namespace zerorun
