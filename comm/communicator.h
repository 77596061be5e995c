// Collectives among ranks. Each rank owns one Communicator; any of its threads may start a collective.
// Ranks issue the same collectives of each kind in the same order, with the same labels; if they do not,
// the deadline ends in an error that says where each rank is. Each collective returns a Work; until its
// wait() has returned, the tensors given to it belong to the communicator. Sums over CPU tensors are
// computed in rank order: their bits depend neither on bucket sizes nor on timing. Every wait has a
// deadline; a missed one throws CommError naming collective, label and missing ranks. A forked child cannot
// take part in collectives.
//
// Tensors are on the communicator's device, or on the CPU: metadata that ranks exchange never waits for a
// GPU. On a device with streams a collective runs on the current stream of the thread that starts it, like
// any operator, and is complete when the stream has executed it: there wait() only checks that the
// communicator still works. Other streams wait for events (device/streams.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/process.h"
#include "device/device.h"

namespace zerorun {

enum class Collective { reduce_scatter, all_gather, all_reduce, broadcast, barrier };
inline constexpr int kCollectiveKinds = 5;
const char* name_of(Collective collective);

/// Identifies a collective in errors. `label` ("bucket 3") must be the same on all ranks, `reason` ("for
/// aten::addmm on h.0.weight") need not be.
struct CollectiveCall {
  Collective kind;
  at::Tensor output;
  at::Tensor input;
  int root;
  std::string label;
  std::string reason;
};

/// "all_gather of bucket 3 for aten::addmm on h.0.weight"
std::string describe(const CollectiveCall& call);
/// "ranks disagree on what comes next: rank 0 is in all_gather of bucket 3, rank 1 in all_gather of bucket 4"
std::string describe_disagreement(int rank, const std::string& mine, int other_rank,
                                  const std::string& theirs);

/// Throws CommError in a process forked from `rank`. `what`: the refused use, for the message.
void check_not_forked(const HomeProcess& home, int rank, const std::string& what);

/// A started collective.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the output is complete and the input may be written again. Call it once; if a Work is
  /// destroyed without it, its tensors are in an unknown state. Throws CommError.
  virtual void wait() = 0;
};

/// Elements that this rank has sent (or would have, but for shared memory), by collective: (N-1)/N of the
/// whole for a reduce-scatter or an all-gather; N-1 times the tensor for an all-reduce (meant for a few
/// scalars) and, on the root, for a broadcast.
class Volume {
 public:
  void add(const CollectiveCall& call, int rank, int world_size);
  double elements(Collective kind) const { return elements_[static_cast<size_t>(kind)]; }
  void reset() { elements_ = {}; }

 private:
  std::array<double, kCollectiveKinds> elements_{};
};

class Notices;

class Communicator {
 public:
  /// `device` outlives it.
  Communicator(int rank, int world_size, std::chrono::milliseconds timeout, Device& device = cpu_device());
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  Device& device() const { return *device_; }

  /// A zero-filled 1-D tensor on the device, in the memory that this communicator sends fastest. A
  /// collective: all ranks allocate the same in the same order.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype);
  /// A zero-filled 1-D tensor in memory that all ranks share; collectives order their accesses.
  /// all_gather() into this tensor from its own slice, and broadcast() of it, copy nothing: they only wait
  /// until all ranks have called them. Undefined if ranks share no memory, or there is no room. A collective.
  virtual at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype);
  /// A tensor with the values of `shared`, from allocate_shared(), that only this rank uses. No rank may
  /// write to `shared` afterwards.
  virtual at::Tensor make_own(const at::Tensor& shared);
  /// Returns the pages that lie wholly in `part`, of a tensor from allocate_shared(), to the system: they
  /// read as zeros until some rank writes to them.
  virtual void give_back_pages(const at::Tensor& part);
  /// Whether ranks share memory: then allocate_shared() fails only if there is no room.
  virtual bool shares_memory() const { return false; }
  /// A board for short texts to other ranks, outside of collectives (comm/notices.h). All ranks open their
  /// boards in the same order.
  virtual std::unique_ptr<Notices> open_notices() = 0;
  /// Bytes of buffers that this communicator keeps for collectives.
  virtual int64_t scratch_bytes() const { return 0; }

  // Tensors are 1-D and contiguous.

  /// output (numel / N) = sum over ranks of slice `rank` of their input. `output` may be that slice of
  /// `input`.
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, std::string label);
  /// Slice r of output = input of rank r. `input` may be slice `rank` of `output`.
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, std::string label,
                                                 std::string reason = {});
  /// tensor = sum over ranks. Meant for a few scalars: every rank sends all of them to every other rank.
  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor tensor, std::string label);
  /// tensor = the root's tensor.
  [[nodiscard]] std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, std::string label);
  [[nodiscard]] std::unique_ptr<Work> barrier(std::string label);

  /// Combines the collectives that `body` starts on one stream of the device into one operation if
  /// possible, which costs less. They are enqueued when this returns, not before: until then do not record
  /// events after them or wait for them. Other threads must not start collectives meanwhile. Not nestable.
  template <typename Body>
  void group(const Body& body) {
    Group group(*this);
    body();
    group.close();
  }

  /// Not while another thread starts a collective.
  Volume& volume() { return volume_; }

 protected:
  /// Starts `call`, whose tensors have been checked; one thread at a time. Several may be under way; they
  /// finish in the order of their waits.
  virtual std::unique_ptr<Work> start(CollectiveCall call) = 0;
  /// Between these start() may hold calls back; close_group() starts them, unless `abandoned`.
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

  int rank_;
  int world_size_;
  std::chrono::milliseconds timeout_;
  Device* device_;
  HomeProcess home_;
  std::recursive_mutex issue_;  // a group has it, and so has each of its calls
  Volume volume_;
};

}  // namespace zerorun
