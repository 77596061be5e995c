// Holds this rank's state in the launcher's memory after optimizer steps, and finds it there when the ranks
// have been started again (zerorun --hold_every, docs/restarts.md). A generation has what a checkpoint has,
// made and restored by the same code. Owned by the engine; used by its thread.
//
// [Note: held generations] Ranks copy without waiting for each other, so one rank may have step 7 when
// another that was killed has only 6. Each rank therefore keeps its last two generations, and after a restart
// all ranks take the newest one that each of them has. The name of the attempt keeps apart generations of the
// same step from different starts of the ranks. The copy of a step is made when the program has called
// DataPosition::advance() after it, so that the position is that behind the step; without a position at the
// end of step().
//
// [Note: generations and saves] A job that went on behind a save which was begun, but not published, would
// never make that save again. So a save drops the generation of its own step, and nothing is held until it is
// published.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/unique_fd.h"
#include "checkpoint/held_files.h"
#include "checkpoint/verification.h"
#include "engine/data_position.h"
#include "engine/options.h"
#include "engine/saving/kept_files.h"

namespace zerorun {

struct EngineState;
class HeldPlaces;

class HeldGenerations {
 public:
  /// A generation that all ranks have.
  struct Found {
    std::string attempt;
    int64_t step;
    std::string tag;
    std::unique_ptr<checkpoint::HeldFiles> files;
  };

  HeldGenerations();
  ~HeldGenerations();
  HeldGenerations(const HeldGenerations&) = delete;
  HeldGenerations& operator=(const HeldGenerations&) = delete;

  /// The generations of the run that saves to `directory`, the newest first. `refusal`: why this load may
  /// take none; or empty. A collective.
  std::vector<Found> find(EngineState& state, const std::filesystem::path& directory,
                          const std::string& refusal);
  /// Whether find() has found that ranks have memory for generations. The same on all ranks.
  bool has_memory() const { return has_memory_; }
  /// Which files of a generation this rank verifies. Only after find() has found one.
  checkpoint::VerifiedPart part_to_verify() const;
  /// Holds generations from now on, beside the one that has been restored; if none has, those that are there
  /// are dropped. `refusal`: why this run may hold none; or empty. `options`: of load_newest(). A collective.
  void start(EngineState& state, const Found* restored, const std::string& refusal,
             const RestoreOptions& options);
  /// Whether the program gives its client_state for generations.
  bool gives_client_state() const { return client_state_ != nullptr; }
  /// Whether generations are held now.
  bool holds() const { return holds_; }
  /// Call it when a save begins, before anything is written.
  void begin_save(const EngineState& state);
  /// Drops what is held, because the program has loaded another state.
  void drop();
  /// Drops what is held, and holds nothing any more; the log warns of the reason.
  void stop(const std::string& reason);

  /// Call it at the end of an optimizer step.
  void end_step(EngineState& state);
  /// Makes the generation of the last step, if one is due.
  void hold(EngineState& state);
  /// Generations are made when this position advances.
  void follow(EngineState& state, DataPosition& position);

 private:
  struct Name {
    std::string attempt;
    int64_t step;
    friend bool operator==(const Name&, const Name&) = default;
  };
  /// What a rank says of its memory.
  struct Listing;

  void open(const EngineState& state);
  std::string list_own(const std::string& refusal) const;
  std::string why_not(EngineState& state) const;
  CheckpointOptions program_state() const;
  int64_t bytes_of_slot(EngineState& state) const;
  void claim() const;
  void check_fits(const std::vector<int64_t>& bytes) const;
  void keep_only(const Found* restored);
  void release();
  void write(EngineState& state);
  void log_cost(std::chrono::duration<double> time, int64_t bytes) const;

  HomeProcess home_;
  std::unique_ptr<HeldPlaces> places_;      // null: not looked for yet
  std::array<UniqueFd, 2>* own_ = nullptr;  // this rank's; null: it has none of this job's
  bool has_memory_ = false;
  std::string run_;                            // HeldGeneration::run and ...
  std::string attempt_;                        // ... HeldGeneration::attempt of what is held from now on
  std::function<ClientState()> client_state_;  // null: the program gives none
  bool holds_when_asked_ = false;
  bool holds_ = false;
  int newest_ = 0;            // which of the two slots
  int64_t newest_step_ = -1;  // of the generation there; -1: not known
  bool is_due_ = false;       // a step has ended that is to be held and is not yet
  bool has_warned_ = false;
  int64_t held_ = 0;                               // generations since start()
  std::chrono::steady_clock::time_point written_;  // when the last one was
  std::array<KeptFiles, 2> kept_;                  // by slot
  std::optional<DataPosition> position_;
};

}  // namespace zerorun
