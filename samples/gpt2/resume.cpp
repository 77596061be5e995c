#include "samples/gpt2/resume.h"

#include <cstdlib>
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

}  // namespace

std::string client_state(const Dataset& data) {
  return nlohmann::json{{"data", data.identity()}}.dump();
}

zerorun::RestoredCheckpoint resume(const ProgramOptions& options, const Dataset& data,
                                   zerorun::Engine& engine, zerorun::DataPosition& position) {
  // Of zerorun --max_restarts; the second one is set from the first start on, with --hold_every.
  const bool goes_on =
      std::getenv("ZERORUN_RESTARTS") != nullptr || std::getenv("ZERORUN_HELD_MEMORY") != nullptr;
  if (goes_on && !options.save_dir.empty()) {
    if (auto own =
            engine.load_newest(options.save_dir, {.client_state = [&data] { return client_state(data); }})) {
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
