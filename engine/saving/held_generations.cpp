#include "engine/saving/held_generations.h"

#include <c10/core/GradMode.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "base/log.h"
#include "base/memory_limits.h"
#include "checkpoint/checksums.h"
#include "checkpoint/json_text.h"
#include "checkpoint/own_folder.h"
#include "checkpoint/publication.h"
#include "comm/agreement.h"
#include "engine/engine_state.h"
#include "engine/saving/checkpoint_part.h"
#include "engine/saving/client_tensors.h"
#include "engine/saving/held_places.h"
#include "engine/saving/save_checks.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLabel = "generations in memory";
constexpr char kRemark = '!';  // begins a line that names no generation

// The memory to which engines of this process write, by the number of a rank's first file.
struct UsedMemory {
  std::mutex mutex;
  std::set<ino_t> files;
};

UsedMemory& used_memory() {
  static UsedMemory all;
  return all;
}

ino_t number_of(const HeldSlots& slots) {
  struct stat status {};
  ::fstat(slots[0].get(), &status);
  return status.st_ino;
}

int64_t file_bytes(int file) {
  struct stat status {};
  ::fstat(file, &status);
  return status.st_size;
}

std::string id_of(const fs::path& directory) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(directory, error);
  const std::string path = (error ? directory : whole).string();
  return in_hexadecimal(checkpoint::checksum_of(std::as_bytes(std::span(path))));
}

}  // namespace

struct HeldGenerations::Listing {
  explicit Listing(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      Name name;
      if (line.starts_with(kRemark)) {
        remarks.push_back(line.substr(1));
      } else if (std::istringstream(line) >> name.attempt >> name.step) {
        names.push_back(std::move(name));
      }
    }
  }
  bool has(const Name& name) const { return std::ranges::find(names, name) != names.end(); }

  std::vector<Name> names;
  std::vector<std::string> remarks;
};

HeldGenerations::HeldGenerations() = default;

HeldGenerations::~HeldGenerations() {
  if (!home_.is_current()) return;
  if (position_) position_->when_advanced({});
  if (!holds_) return;
  const std::lock_guard lock(used_memory().mutex);
  used_memory().files.erase(number_of(*own_));
}

void HeldGenerations::open(const EngineState& state) {
  if (places_) return;
  places_ = std::make_unique<HeldPlaces>(state.mesh.world());
  own_ = places_->own();
}

// A line for each generation; empty if the launcher holds none. Damage and why none is taken are remarks.
std::string HeldGenerations::list_own(const std::string& refusal) const {
  if (!places_->is_named()) return {};
  if (own_ == nullptr) return kRemark + places_->problem() + ": none is taken\n";
  if (!refusal.empty()) return kRemark + refusal + ": none is taken\n";
  std::string list = "\n";
  for (const HeldSlot& slot : places_->sources()) {
    try {
      const auto generation = checkpoint::read_generation(slot);
      // What this engine has held itself is the state that the program wants to leave.
      const bool is_own = holds_ && generation && generation->attempt == attempt_;
      if (generation && generation->run == run_ && !is_own)
        list += generation->attempt + " " + std::to_string(generation->step) + "\n";
    } catch (const std::exception& error) {
      list += kRemark + std::string("one is passed over: ") + error.what() + "\n";
    }
  }
  return list;
}

std::vector<HeldGenerations::Found> HeldGenerations::find(EngineState& state, const fs::path& directory,
                                                          const std::string& refusal) {
  Communicator& ranks = state.mesh.world();
  open(state);
  run_ = id_of(directory);
  if (own_ != nullptr && state.config.holds_at_partner) places_->use_copies();
  const std::vector<std::string> texts = exchange_texts(list_own(refusal), ranks, kLabel);
  has_memory_ = std::ranges::none_of(texts, [](const std::string& text) { return text.empty(); });
  if (!has_memory_) return {};
  std::vector<Listing> lists;
  for (const std::string& text : texts) lists.emplace_back(text);
  std::vector<Found> found;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (const std::string& remark : lists[rank].remarks) {
      if (ranks.rank() == 0)
        log_warning("generations in memory: rank " + std::to_string(rank) + ": " + remark);
    }
  }
  for (const Name& name : lists.front().names) {
    if (std::ranges::all_of(lists, [&](const Listing& list) { return list.has(name); }))
      found.push_back({.attempt = name.attempt,
                       .step = name.step,
                       .tag = checkpoint::kStepTag + std::to_string(name.step),
                       .files = places_->files_of(run_, name.attempt, name.step)});
  }
  std::ranges::sort(found, std::ranges::greater(), &Found::step);
  return found;
}

checkpoint::VerifiedPart HeldGenerations::part_to_verify() const {
  return places_->part_to_verify();
}

// Why this engine's state is not held; empty if it is.
std::string HeldGenerations::why_not(EngineState& state) const {
  if (own_ == nullptr) return "the job has another number of ranks than the launcher has started";
  if (state.computes_only) return "the engine does not train";
  if (state.mesh.world().device().streams().asynchronous()) return "the state is in a GPU's memory";
  if (state.mesh.has_groups() || state.stage) return "the model is divided among tensor or pipeline ranks";
  if (state.store.files() != nullptr || state.store.value_files() != nullptr)
    return "state is kept in files (offload to nvme)";
  return {};
}

CheckpointOptions HeldGenerations::program_state() const {
  CheckpointOptions options;
  if (!client_state_) return options;
  ClientState given = client_state_();
  checkpoint::check_json(given.json, "RestoreOptions::client_state");
  check_client_tensors(given.tensors);
  options.client_state = std::move(given.json);
  options.client_tensors = std::move(given.tensors);
  return options;
}

// What a generation may take.
int64_t HeldGenerations::bytes_of_slot(EngineState& state) const {
  constexpr int64_t kPerRange = 1024;  // in a file's header and in the description
  constexpr int64_t kMore = 1 << 18;   // for the program's state too, which may change
  const c10::NoGradGuard no_grad;
  CheckpointPart part;
  const CheckpointOptions options = program_state();
  fill_part(state, "", options, ReadTime::at_once, part);
  int64_t bytes = kMore + 2 * std::ssize(options.client_state);
  for (const checkpoint::FileToWrite& file : part.files)
    bytes += file.bytes() + kPerRange * std::ssize(file.ranges) + 2 * checkpoint::kPageBytes;
  return bytes;
}

// So that a lack of memory is found before the first step. The system gives memory files more than there is,
// and kills a process when it is used. `bytes`: of a generation, of each rank.
void HeldGenerations::check_fits(const std::vector<int64_t>& bytes) const {
  const int64_t wanted = places_->bytes_wanted(bytes), available = available_memory();
  if (wanted <= available) return;
  throw UserError(
      (places_->makes_copies()
           ? "two generations of all ranks of its host, and copies of as many of another host's, take "
           : "two generations of all ranks of its host take ") +
      std::to_string(wanted >> 20) + " MiB, and " + std::to_string(available >> 20) + " MiB are available");
}

void HeldGenerations::start(EngineState& state, const Found* restored, const std::string& refusal,
                            const RestoreOptions& options) {
  if (!has_memory_) return;
  places_->disconnect();
  client_state_ = options.client_state;
  holds_when_asked_ = options.holds_when_asked;
  Communicator& ranks = state.mesh.world();
  std::string own_reason = refusal.empty() ? why_not(state) : refusal;
  int64_t own_bytes = 0;
  if (own_reason.empty()) own_reason = failure_of([&] { own_bytes = bytes_of_slot(state); }).text;
  std::vector<int64_t> bytes;
  for (const std::string& text : exchange_texts(std::to_string(own_bytes), ranks, kLabel))
    bytes.push_back(std::stoll(text));
  // All ranks look what is available before the first one takes its part.
  const std::string lack = own_reason.empty() ? failure_of([&] { check_fits(bytes); }).text : own_reason;
  auto reasons = exchange_texts(lack, ranks, kLabel);
  const auto reserve = [&] {
    for (const int slot : {0, 1}) {
      checkpoint::reserve_generation(places_->own_file(slot), own_bytes);
      places_->reserve_copy(slot, own_bytes);
    }
  };
  if (std::ranges::all_of(reasons, &std::string::empty))
    reasons = exchange_texts(failure_of(reserve).text, ranks, kLabel);
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    if (ranks.rank() == 0)
      log_warning("--hold_every: no state is held in memory, restarts are from checkpoints alone: rank " +
                  std::to_string(rank) + ": " + reasons[rank]);
    return release();
  }
  on_all_ranks(ranks, kLabel, [&] {
    if (!holds_) claim();
    keep_only(restored);
  });
  attempt_ = exchange_texts(ranks.rank() == 0 ? checkpoint::new_save_id() : "", ranks, kLabel).front();
  held_ = 0;
  for (KeptFiles& kept : kept_) kept.forget();
  holds_ = true;
}

void HeldGenerations::claim() const {
  const std::lock_guard lock(used_memory().mutex);
  if (used_memory().files.insert(number_of(*own_)).second) return;
  throw UserError(
      "load_newest() of a second engine in a process whose first one holds its state in memory: only one "
      "engine can go on from there, so leave out --hold_every");
}

// The next generation is written over the other slot.
void HeldGenerations::keep_only(const Found* restored) {
  newest_ = 1;
  newest_step_ = -1;
  const auto has_it = [&](const HeldSlot& slot) {
    return restored && HeldPlaces::has(slot, run_, restored->attempt, restored->step);
  };
  std::array<bool, 2> is_copied{};
  // First, so that the copies count until this rank has what they have.
  for (const int slot : {0, 1}) {
    const auto place = static_cast<size_t>(slot);
    is_copied[place] = places_->makes_copies() && has_it(places_->own_copy(slot));
    if (is_copied[place] && !has_it({.descriptor = places_->own_file(slot)})) places_->fetch_copy(slot);
  }
  for (const int slot : {0, 1}) {
    const HeldSlot own{.descriptor = places_->own_file(slot)};
    if (!has_it(own)) {
      places_->clear(slot);
      continue;
    }
    newest_ = slot;
    newest_step_ = restored->step;
    if (!is_copied[static_cast<size_t>(slot)]) places_->send_copy(slot, file_bytes(own.descriptor));
  }
}

void HeldGenerations::begin_save(const EngineState& state) {
  if (!holds_ || newest_step_ != state.progress.counts().global) return;
  places_->clear(newest_);
  newest_ = 1 - newest_;
  newest_step_ = -1;
}

void HeldGenerations::drop() {
  is_due_ = false;
  if (!holds_) return;
  for (const int slot : {0, 1}) places_->clear(slot);
}

// Frees the memory, also that which a refused start has taken, unless another engine of this process has it.
void HeldGenerations::release() {
  if (own_ == nullptr) return;
  const std::lock_guard lock(used_memory().mutex);
  const bool is_used = used_memory().files.contains(number_of(*own_));
  if (is_used && !holds_) return;
  for (const int slot : {0, 1}) {
    failure_of([&] { places_->clear(slot); });
    places_->free(slot);
  }
  used_memory().files.erase(number_of(*own_));
  holds_ = false;
}

void HeldGenerations::stop(const std::string& reason) {
  if (!holds_) return;
  log_warning("--hold_every: from now on no state is held in memory, restarts are from checkpoints alone: " +
              reason);
  release();
}

void HeldGenerations::end_step(EngineState& state) {
  if (!holds_ || state.progress.counts().global % places_->every() != 0) return;
  is_due_ = true;
  if (!state.data && !holds_when_asked_) hold(state);
}

void HeldGenerations::follow(EngineState& state, DataPosition& position) {
  if (position_) position_->when_advanced({});
  position_ = position;
  position_->when_advanced([this, &state] {
    if (!holds_when_asked_) hold(state);
  });
}

void HeldGenerations::hold(EngineState& state) {
  if (!is_due_ || !holds_ || !home_.is_current()) return;
  is_due_ = false;
  if (state.checkpoints.is_writing() || state.checkpoints.has_failed()) return;
  const c10::NoGradGuard no_grad;
  const Failure refusal = failure_of([&] {
    state.check_no_step_is_open("--hold_every");
    state.check_states_are_here("--hold_every");
    state.optimizer->follow_program();
    state.follow_schedule();
    check_numbers(state, "--hold_every");
    if (state.progress.counts().micro > 0 || (state.residency && state.residency->has_pending_writes()))
      throw UserError("the program has written to parameters, or begun the next step");
  });
  if (refusal) {
    if (!std::exchange(has_warned_, true))
      log_warning("step " + std::to_string(state.progress.counts().global) +
                  " is not held in memory, nor are others for such a reason: " + refusal.text);
    return;
  }
  state.buckets.masters().follow_writes();
  if (const Failure failure = failure_of([&] { write(state); })) stop(failure.text);
}

void HeldGenerations::write(EngineState& state) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t step = state.progress.counts().global;
  const int slot = 1 - newest_;
  const int file = places_->own_file(slot);
  const std::string tag = checkpoint::kStepTag + std::to_string(step);
  CheckpointPart part;
  fill_part(state, tag, program_state(), ReadTime::at_once, part);
  places_->clear(slot);
  checkpoint::HeldFiles files(file, checkpoint::kHeldBegin);
  std::map<std::string, checkpoint::StateFileFacts> facts;
  const int64_t unchanged =
      kept_[static_cast<size_t>(slot)].write(part.files, state.checkpoints.frozen(), files, facts);
  checkpoint::HeldGeneration generation{.run = run_, .attempt = attempt_, .step = step};
  generation.part = checkpoint::to_json(facts, part.manifest.numbers.front());
  generation.places = files.places();
  const bool is_first = state.mesh.world().rank() == 0;
  part.manifest.numbers.assign(static_cast<size_t>(part.manifest.world_size), {});
  if (is_first) generation.manifest = checkpoint::to_json(part.manifest);
  const int64_t bytes = checkpoint::finish_generation(file, generation, files.end());
  places_->send_copy(slot, bytes, unchanged);
  newest_ = slot;
  newest_step_ = step;
  constexpr int64_t kSteady = 4;  // both slots have their pages
  if (++held_ == kSteady && is_first) log_cost(std::chrono::steady_clock::now() - begin, bytes - unchanged);
  written_ = std::chrono::steady_clock::now();
}

void HeldGenerations::log_cost(std::chrono::duration<double> time, int64_t bytes) const {
  const std::chrono::duration<double> between = std::chrono::steady_clock::now() - written_;
  const double mib = static_cast<double>(bytes) / (1 << 20);
  std::ostringstream text;
  text.precision(3);
  text << "each rank holds its last two generations in memory (--hold_every): 2 x " << mib
       << " MiB for rank 0, each written in " << time.count() * 1000 << " ms (" << mib / 1024 / time.count()
       << " GiB/s), " << 100 * (time / between) << " % of the time from one to the next";
  if (places_->makes_copies()) text << ", with the copies to the next host: " << mib << " MiB sent for each";
  log_info(text.str());
}

}  // namespace zerorun
