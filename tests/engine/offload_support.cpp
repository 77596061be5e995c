#include "tests/engine/offload_support.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

namespace fs = std::filesystem;

std::string tiny_config(const std::string& precision, int accumulation, double clipping, int stage,
                        const std::string& offload) {
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}}, "gradient_clipping": )" +
         std::to_string(clipping) + ", " + precision + R"("zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 100)" + offload + "}}";
}

std::string offload_in(const std::string& section, const fs::path& folder) {
  return ", \"" + section + R"(": {"device": "nvme", "nvme_path": ")" + folder.string() + '"' +
         (section == "offload_param" ? R"(, "max_in_cpu": 0})" : "}");
}

StateCase wide(StateCase how) {
  constexpr int64_t kWidth = 61 * 128;
  how.width = kWidth;
  return how;
}

void train(const StateCase& how, int ranks, int stage, const std::string& precision, Trained& trained,
           bool shares_memory, const std::function<void(StateTraining&, int)>& behind_step) {
  trained.losses.resize(ranks);
  run_ranks(
      ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        StateTraining training(how, stage, precision, communicator);
        for (int step = 0; step < 5; ++step) {
          trained.losses[communicator->rank()].push_back(training.step(step));
          if (behind_step) behind_step(training, step);
        }
        trained.state.add(training);
      },
      std::chrono::seconds(60), shares_memory);
}

void check_same_training(const Trained& a, const Trained& b) {
  CHECK(a.losses == b.losses);
  check_same(a.state.whole(), b.state.whole());
}

void check_files_of_every_optimizer(
    const std::vector<Sharing>& sharings,
    const std::function<StateCase(const StateCase& how, int ranks, const fs::path& folder)>& filed) {
  const TemporaryFolder folder;
  std::vector<StateCase> cases = all_state_cases();
  std::erase_if(cases, [](const StateCase& how) { return how.client != nullptr; });
  for (const auto& [optimizer, narrow, sharing] : settings(cases.size(), 2, sharings.size())) {
    const StateCase how = wide(cases[optimizer]);
    const auto& [ranks, stage, shares_memory] = sharings[sharing];
    const std::string precision = narrow == 1 ? "bf16" : "fp32";
    CAPTURE(how.optimizer, precision, ranks, stage, shares_memory);
    Trained in_memory, in_files;
    train(how, ranks, stage, precision, in_memory, shares_memory);
    train(filed(how, ranks, folder / ""), ranks, stage, precision, in_files, shares_memory);
    check_same_training(in_files, in_memory);
  }
}

void flip_bits_in_files_of(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (gone || target.string().find(folder.string()) != 0) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto bytes = static_cast<int64_t>(fs::file_size(entry.path()));
    for (int64_t at = std::min<int64_t>(bytes / 2, 1 << 19); at < bytes; at += 1 << 20) {
      char byte = 0;
      file.seekg(at).get(byte);
      file.seekp(at).put(static_cast<char>(byte ^ 16)).flush();
    }
  }
}

}  // namespace zerorun::testing
