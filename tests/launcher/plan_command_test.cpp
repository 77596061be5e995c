// Runs `zerorun plan` as users do.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_folder.h"
#include "tests/launcher/command_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

constexpr char kConfig[] = R"({
  // comments are allowed
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
  "zero_optimization": {"stage": %STAGE%},
})";

std::string config(int stage) {
  std::string text = kConfig;
  return text.replace(text.find("%STAGE%"), 7, std::to_string(stage));
}

// A file with the headers of these tensors. It has no blocks on the disk for their values.
void write_model(const std::filesystem::path& file, const std::vector<TensorToStore>& tensors) {
  const std::string header = safetensors_header(tensors);
  int64_t bytes = static_cast<int64_t>(header.size());
  for (const TensorToStore& tensor : tensors) bytes += tensor.bytes();
  const int opened = ::open(file.c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(opened >= 0);
  REQUIRE(::write(opened, header.data(), header.size()) == static_cast<ssize_t>(header.size()));
  REQUIRE(::ftruncate(opened, bytes) == 0);
  ::close(opened);
}

std::vector<TensorToStore> llama_70b() {
  constexpr int64_t kHidden = 8192, kInner = 28672, kKeys = 1024, kWords = 128256;
  std::vector<TensorToStore> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({.name = name, .dtype = "BF16", .shape = std::move(shape)});
  };
  add("model.embed_tokens.weight", {kWords, kHidden});
  for (int layer = 0; layer < 80; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {kHidden});
    add(prefix + "self_attn.q_proj.weight", {kHidden, kHidden});
    add(prefix + "self_attn.k_proj.weight", {kKeys, kHidden});
    add(prefix + "self_attn.v_proj.weight", {kKeys, kHidden});
    add(prefix + "self_attn.o_proj.weight", {kHidden, kHidden});
    add(prefix + "post_attention_layernorm.weight", {kHidden});
    add(prefix + "mlp.gate_proj.weight", {kInner, kHidden});
    add(prefix + "mlp.up_proj.weight", {kInner, kHidden});
    add(prefix + "mlp.down_proj.weight", {kHidden, kInner});
  }
  add("model.norm.weight", {kHidden});
  add("lm_head.weight", {kWords, kHidden});
  return tensors;
}

}  // namespace

TEST_CASE("plan: tells bytes by category, traffic, and other numbers of ranks") {
  const CommandFolder folder;
  folder.write("ds.json", config(1));
  const Outcome outcome = folder.run("plan --config ds.json --params 64M --world 4 --json");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json plan = json::parse(outcome.out);
  CHECK(plan.at("parameters") == 64'000'000);
  const json& bytes = plan.at("rank").at("bytes");
  CHECK(bytes.at("moments") == 2 * 4 * 16'000'000);
  CHECK(bytes.at("master") == 4 * 16'000'000);
  CHECK(bytes.at("activations").is_null());
  const json& sent = plan.at("rank").at("sent_per_step");
  CHECK(sent.at("gather").at("elements") == 48'000'000);  // 3/4 of the parameters
  CHECK(sent.at("reduce").at("elements") == 48'000'000);
  CHECK(plan.at("other_world_sizes").size() == 4);
  const Outcome text = folder.run("plan --config ds.json --params 64M --world 4");
  CHECK_THAT(text.out, Contains("64,000,000 parameters") && Contains("moments") && Contains("not known") &&
                           Contains("gather") && Contains("48,000,000 elements"));
}

TEST_CASE("plan: names the smallest change with which a rank fits, as a diff") {
  const CommandFolder folder;
  folder.write("ds.json", config(0));
  const Outcome cpu = folder.run("plan --config ds.json --params 64M --world 4 --hosts 4 --memory 1GB");
  CHECK(cpu.exit_code == 1);
  CHECK_THAT(cpu.out, Contains("does not fit") && Contains("-   \"stage\": 0,\n+   \"stage\": 1,"));
  const Outcome fits = folder.run("plan --config ds.json --params 64M --world 4 --memory 8G");
  CHECK(fits.exit_code == 0);
  CHECK_THAT(fits.out, Contains("fits into 8.00 GiB"));
  const Outcome gpu =
      folder.run("plan --config ds.json --params 64M --world 1 --device cuda --memory 900M --json");
  INFO(gpu.out << gpu.err);
  CHECK(gpu.exit_code == 1);
  const json change = json::parse(gpu.out).at("change").at("zero_optimization");
  CHECK(change.at("offload_optimizer").at("after").at("device") == "cpu");
  const Outcome never = folder.run("plan --config ds.json --params 64M --memory 1M");
  CHECK(never.exit_code == 1);
  CHECK_THAT(never.out, Contains("use more ranks or a smaller model"));
}

TEST_CASE("plan: tells how long a drive lasts") {
  const CommandFolder folder;
  folder.write("ds.json", R"({"train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/nowhere"}}})");
  const Outcome outcome =
      folder.run("plan --config ds.json --params 64M --world 2 --step-seconds 8.64 --endurance 600T --json");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json plan = json::parse(outcome.out);
  const double written = plan.at("rank").at("written_per_step");
  CHECK(written == Approx(2 * 4 * 32e6).epsilon(0.01));  // two moments of a half of the parameters
  CHECK(plan.at("written_per_day_and_host") == Approx(2 * written * 10000));
  CHECK(plan.at("years") == Approx(600e12 / (2 * written * 10000) / 365));
}

TEST_CASE("plan: a 70B model on 512 ranks takes at most 200 MB") {
  const CommandFolder folder;
  folder.write("ds.json", config(3));
  std::filesystem::create_directory(folder / "llama");
  write_model(folder / "llama/model.safetensors", llama_70b());
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome =
      folder.run("plan --config ds.json --model llama --world 512 --hosts 64 --no-others --json");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json plan = json::parse(outcome.out);
  CHECK(plan.at("parameters") == 70'553'706'496);
  CHECK(plan.at("rank").at("bytes").at("moments") == Approx(8 * 70'553'706'496.0 / 512).epsilon(0.001));
  rusage children{};
  ::getrusage(RUSAGE_CHILDREN, &children);
  std::printf("%.1f s\n", seconds.count());  // 1 s without other numbers of ranks on an idle machine
  CHECK(children.ru_maxrss < 200'000);
}

TEST_CASE("plan: mistakes are named with their remedies") {
  const CommandFolder folder;
  folder.write("ds.json", config(1));
  folder.write("bad.json", R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}})");
  std::filesystem::create_directory(folder / "text");
  write_model(folder / "quantized.safetensors", {{.name = "weight", .dtype = "U8", .shape = {8}}});
  const auto refuses = [&](const std::string& arguments, const std::string& part) {
    const Outcome outcome = folder.run("plan " + arguments);
    INFO(arguments << "\n" << outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains(part));
  };
  refuses("--params 1M", "--config is required");
  refuses("--config ds.json", "--model DIR) or its number of parameters (--params N)");
  refuses("--config ds.json --params 1M --memory lots", "--memory: expected a size such as 24G");
  refuses("--config ds.json --params 1M --memory 24Q", "found 24Q");
  refuses("--config ds.json --params 1M --endurance 600T", "give --step-seconds S too");
  refuses("--config ds.json --params 1M --world 3 --hosts 2", "do not divide among 2 hosts");
  refuses("--config none.json --params 1M", "none.json");
  refuses("--config bad.json --params 1M", "zero_optimization.stage");
  folder.write("stages.json",
               R"({"train_micro_batch_size_per_gpu": 1, "zerorun": {"mesh": {"pipeline": 2}}})");
  refuses("--config stages.json --params 1M --world 2", "nothing says how they divide the model");
  refuses("--config ds.json --model none", "none");
  refuses("--config ds.json --model text", "text");
  refuses("--config ds.json --model quantized.safetensors", "tensor weight has dtype U8");
  const Outcome help = folder.run("plan --help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.out, Contains("zerorun plan --config ds_config.json --params 7e9"));
}

}  // namespace zerorun::testing
