// A training for restarts_test: a rank of `zerorun --max_restarts`, which a test kills at any moment.
//
//   restarted_program FOLDER STEPS SAVE_EVERY STAGE PRECISION [partner]
//
// Rank R appends a line to FOLDER/rankR for each step, just before it ends: "STEP LOSS SAMPLE...", and times
// of its attempt as "# began|read|stepped SECONDS". The last step waits until there is a file FOLDER/go.
// Where there is a file FOLDER/hang.R.STEP.PLACE, rank R removes it and hangs there: in the data loader
// ("loader"), or in forward ("forward").
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>
#include <zerorun/zerorun.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int64_t kData = 50;
constexpr int64_t kWidth = 24;

// `partner`: of zerorun.restart.
std::string config_of(const std::string& stage, const std::string& precision, bool partner) {
  // A window of 8 steps, so that the scale grows in the run.
  const std::string fp16 = R"("fp16": {"enabled": true, "initial_scale_power": 18, "loss_scale_window": 8},)";
  return R"({
  "train_micro_batch_size_per_gpu": 3,
  "gradient_accumulation_steps": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 40}},
  )" +
         (precision == "fp16"   ? fp16
          : precision == "bf16" ? R"("bf16": {"enabled": true},)"
                                : "") +
         (partner ? R"("zerorun": {"restart": {"partner": true}},)" : "") +
         R"("zero_optimization": {"stage": )" + stage + "}}";
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_module("table", torch::nn::Embedding(kData, kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, 1));
  }
  // Dropout, so that the random generator's state must continue too.
  at::Tensor loss(const at::Tensor& samples) {
    const at::Tensor hidden = torch::dropout(torch::tanh(table(samples)), 0.2, true);
    return (head(hidden).squeeze(1) - samples.to(torch::kFloat).sin()).square().mean();
  }

  torch::nn::Embedding table = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Net);

// One write per line, so that a kill leaves no part of one.
void append(const fs::path& file, const std::string& line) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const std::string text = line + "\n";
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw zerorun::UserError(file.string() + " cannot be written");
  ::close(fd);
}

std::string seconds_now() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::ostringstream text;
  text.precision(15);
  text << now.count();
  return text.str();
}

void await(const fs::path& file) {
  const auto end = std::chrono::steady_clock::now() + 120s;
  while (!fs::exists(file)) {
    if (std::chrono::steady_clock::now() >= end) throw zerorun::UserError(file.string() + " does not come");
    std::this_thread::sleep_for(10ms);
  }
}

// Hangs if a test wants so at this place.
void hang_if_wanted(const fs::path& folder, int rank, int64_t step, const std::string& place) {
  const std::string name = "hang." + std::to_string(rank) + "." + std::to_string(step) + "." + place;
  if (!fs::remove(folder / name)) return;
  for (;;) std::this_thread::sleep_for(1h);
}

std::vector<int64_t> load_samples(const zerorun::DataPosition& position, const std::function<void()>& hang) {
  const zerorun::ProgramPart part("the data loader");
  hang();
  return position.samples();
}

int run(const fs::path& folder, int64_t steps, int64_t save_every, const std::string& config) {
  at::set_num_threads(1);
  const auto environment = zerorun::Environment::read();
  const auto rank = environment.rank;
  const fs::path log = folder / ("rank" + std::to_string(rank));
  append(log, "# began " + seconds_now());
  torch::manual_seed(11 + rank);
  Net model;
  zerorun::Engine engine =
      zerorun::initialize(*model, zerorun::parse_config(config, "config", environment.world_size));
  zerorun::DataPosition position(kData, 5);
  engine.attach(position);
  engine.load_newest(folder / "saves");
  append(log, "# read " + seconds_now());
  bool is_first = true;
  while (engine.global_steps() < steps) {
    const int64_t step = engine.global_steps();
    if (step + 1 == steps) await(folder / "go");
    std::ostringstream line;
    line << step << std::hexfloat;
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      const std::vector<int64_t> samples =
          load_samples(position, [&] { hang_if_wanted(folder, rank, step, "loader"); });
      const at::Tensor loss = model->loss(torch::tensor(samples, torch::kLong));
      hang_if_wanted(folder, rank, step, "forward");
      engine.backward(loss);
      line << ' ' << loss.item<float>();
      for (const int64_t sample : samples) line << ' ' << sample;
      // A restart from memory may begin right behind step(), so the line is written before it.
      if (micro_step == 1) append(log, line.str());
      std::this_thread::sleep_for(5ms);
      engine.step();
      position.advance();
    }
    if (is_first) append(log, "# stepped " + seconds_now());
    is_first = false;
    if (step % save_every == save_every - 1) engine.save_checkpoint(folder / "saves", "", {.keep_last = 3});
    std::this_thread::sleep_for(5ms);
  }
  engine.wait_for_checkpoint();
  engine.save_16bit_model(folder, "end.safetensors");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return zerorun::run_program([&] {
    const bool partner = argc == 7 && std::string(argv[6]) == "partner";
    if (argc != 6 && !partner)
      throw zerorun::UserError("usage: restarted_program FOLDER STEPS SAVE_EVERY STAGE PRECISION [partner]");
    return run(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), config_of(argv[4], argv[5], partner));
  });
}
