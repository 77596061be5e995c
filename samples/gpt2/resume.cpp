#include "samples/gpt2/resume.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

namespace samples {
namespace {

using zerorun::UserError;

// Throws UserError if the checkpoint's run trained on other data, or if nothing says how far it came. `flag`:
// where the checkpoint was found.
void check_data(const std::string& flag, const Dataset& data, const std::string& client_state,
                const zerorun::Engine& engine, zerorun::DataPosition& position) {
  const auto state = nlohmann::json::parse(client_state, nullptr, /*allow_exceptions=*/false);
  const bool is_ours = state.is_object() && state.contains("data") && state["data"].is_string();
  if (!is_ours)
    throw UserError(flag +
                    ": the checkpoint does not say which data it was trained on: start at the first sample "
                    "of --data with --new-data");
  if (state["data"] != data.identity())
    throw UserError(flag + ": the checkpoint was trained on other data (" + state["data"].get<std::string>() +
                    "; now " + data.identity() +
                    "): give the same files, tokenizer, --seq and --seed, or begin with the new ones' first "
                    "sample by --new-data");
  // Checkpoints of earlier versions have the position here.
  if (state.contains("next_sample") && state["next_sample"].is_number_integer())
    position.set_used(state["next_sample"].get<int64_t>());
  if (position.used() == 0 && engine.global_steps() > 0)
    throw UserError(
        flag +
        ": the checkpoint does not say how far its run came in the data: start at the first sample "
        "of --data with --new-data");
}

// Whether this first start of a run under zerorun --hold_every holds generations. load_newest() would restore
// what an earlier run has saved, in place of what the flags ask for.
bool holds_from_start(const ProgramOptions& options, zerorun::Engine& engine) {
  if (std::getenv("ZERORUN_HELD_MEMORY") == nullptr || options.save_dir.empty()) return false;
  const bool has_saves = std::filesystem::exists(std::filesystem::path(options.save_dir) / "latest");
  if (options.resume.empty() && !has_saves) return true;
  if (engine.communicator().rank() == 0) {
    std::fprintf(
        stderr,
        "gpt2: --hold_every: until a restart no state is held in memory, because %s: give a --save-dir "
        "without checkpoints, and no --resume\n",
        has_saves ? "--save-dir has checkpoints" : "the run begins with --resume");
  }
  return false;
}

}  // namespace

std::string client_state(const Dataset& data) {
  return nlohmann::json{{"data", data.identity()}}.dump();
}

zerorun::RestoredCheckpoint resume(const ProgramOptions& options, const Dataset& data,
                                   zerorun::Engine& engine, zerorun::DataPosition& position) {
  const bool is_restart = std::getenv("ZERORUN_RESTARTS") != nullptr;
  if ((is_restart && !options.save_dir.empty()) || holds_from_start(options, engine)) {
    const auto own_state = [&data] { return zerorun::ClientState{.json = client_state(data)}; };
    if (auto own = engine.load_newest(options.save_dir, {.client_state = own_state})) {
      check_data("--save-dir " + options.save_dir, data, own->client_state, engine, position);
      return std::move(*own);
    }
  }
  if (options.resume.empty()) return {};
  zerorun::RestoredCheckpoint restored = engine.load_checkpoint(options.resume);
  if (options.new_data) {
    position.set_used(0);
  } else {
    check_data("--resume " + options.resume, data, restored.client_state, engine, position);
  }
  return restored;
}

}  // namespace samples
