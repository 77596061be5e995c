// Where the generations of all ranks lie: in memory of this host, or with the keepers of the job's other
// hosts. Owned by HeldGenerations; used by the engine's thread, and files_of() by threads that read.
//
// [Note: copies on the next host] With zerorun.restart.partner each rank writes its generations also into
// memory of the host behind its own, to the same slot. What a rank's own memory says counts; its copies are
// taken only if its own memory was never used, because its host has lost it and come back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/held_client.h"
#include "base/held_memory.h"
#include "checkpoint/held_generation.h"
#include "checkpoint/verification.h"
#include "comm/communicator.h"

namespace zerorun {

/// The folder's name of a generation: the path of what load_newest() restores begins with it.
inline constexpr const char* kHeldFolder = "memory";

class HeldPlaces {
 public:
  /// Opens what the launcher has named for the job's `ranks`.
  explicit HeldPlaces(const Communicator& ranks);

  /// Why no generation can be taken; empty: one can.
  std::string problem() const;
  /// Whether the launcher has named memory, though it may not fit.
  bool is_named() const { return is_named_; }
  int64_t every() const { return memory_.every; }
  /// The files of this rank; null if there is a problem.
  HeldSlots* own();
  /// Whether the rank is of this host.
  bool is_here(int rank) const;

  /// The file of this rank, which own() has.
  int own_file(int number) const { return slot(rank_, number).descriptor; }

  /// From now on looks for copies too, and makes them; has no effect if the job has only one host. Throws
  /// UserError if the hosts have different numbers of ranks.
  void use_copies();
  /// Whether this rank's generations are copied. Once the next host does not answer, they are not, and the
  /// log warns.
  bool makes_copies() const { return makes_copies_; }
  /// How many bytes of memory this host needs beyond those that its files have, for two generations of so
  /// many bytes of each of its ranks, and for the copies here.
  int64_t bytes_wanted(const std::vector<int64_t>& bytes) const;
  /// Whether a file has this generation; not if it is damaged.
  static bool has(const HeldSlot& slot, const std::string& run, const std::string& attempt, int64_t step);
  /// Where this rank looks for its generations.
  std::array<HeldSlot, 2> sources() const;
  /// This rank's copy on the next host.
  HeldSlot own_copy(int number) const { return copy(rank_, number); }
  /// From now on the file has no generation, nor has its copy.
  void clear(int number);
  /// Takes memory for the copy in advance. Throws UserError if the next host does not give it.
  void reserve_copy(int number, int64_t bytes);
  /// Gives the memory of the file and of its copy back.
  void free(int number);
  /// Writes this rank's generation of so many bytes into its copy, the first page last. What lies in front of
  /// `begin` is there already.
  void send_copy(int number, int64_t bytes, int64_t begin = checkpoint::kHeldBegin);
  /// Writes the copy into this rank's own memory, likewise.
  void fetch_copy(int number);

  /// The files of a generation of all ranks, with a manifest. If that cannot be made, there is none, as in a
  /// damaged checkpoint, and the log warns.
  std::unique_ptr<checkpoint::HeldFiles> files_of(const std::string& run, const std::string& attempt,
                                                  int64_t step) const;
  /// Which files this rank verifies: of those on its host, each by one rank.
  checkpoint::VerifiedPart part_to_verify() const;
  /// Ends the connections to keepers until something is read again.
  void disconnect();

 private:
  checkpoint::HeldGeneration find(int rank, const std::string& run, const std::string& attempt,
                                  int64_t step) const;
  HeldSlot slot(int rank, int number) const;
  HeldSlot copy(int rank, int number) const;
  void stop_copies(const std::string& reason);
  void write_copy(int number, std::span<const std::byte> bytes, int64_t offset);
  template <typename Action>
  void with_copies(const Action& action);
  size_t host_of(int rank) const;
  size_t next_host(size_t host) const { return (host + 1) % hosts_.size(); }

  struct Host {
    int first_rank, ranks;
    HeldClient* keeper;  // null: this host
  };
  OpenHeldMemory memory_;
  std::vector<std::unique_ptr<HeldClient>> clients_;  // as memory_.keepers
  int rank_, world_size_;
  std::vector<Host> hosts_;  // of the job, by rank
  bool is_named_ = false;
  bool uses_copies_ = false;   // looks for them
  bool makes_copies_ = false;  // see makes_copies()
};

}  // namespace zerorun
