// Tests of the run log: what it has of each step, and hashes that do not depend on how a run is done.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "engine/gathered_parameters.h"
#include "monitor/run_comparison.h"
#include "monitor/run_log_reader.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// `config` with the run log in `folder`, and other keys of "zerorun".
std::string with_log(const std::string& config, const fs::path& folder, bool hashes,
                     const std::string& more = "") {
  return config.substr(0, config.rfind('}')) + R"(, "zerorun": {"run_log": {"path": ")" + folder.string() +
         R"(", "hashes": )" + (hashes ? "true" : "false") + "}" + more + "}}";
}

struct Finalizer {
  int first_shift;
  uint32_t first_factor;
  int second_shift;
  uint32_t second_factor;
};

uint32_t finalized(uint32_t bits, const Finalizer& with) {
  bits ^= bits >> with.first_shift;
  bits *= with.first_factor;
  bits ^= bits >> with.second_shift;
  bits *= with.second_factor;
  return bits ^ bits >> 16;
}

// The hash of docs/monitoring.md of a whole tensor, written down once more: element by element.
uint64_t plain_hash(const at::Tensor& tensor) {
  uint64_t sum = 0;
  const at::Tensor flat = tensor.detach().contiguous().flatten();
  const auto size = static_cast<size_t>(flat.element_size());
  for (int64_t i = 0; i < flat.numel(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(flat.const_data_ptr()) + static_cast<size_t>(i) * size, size);
    const auto place = static_cast<uint32_t>(i);
    sum += uint64_t{finalized(bits + (place + 1) * 0xadb4a92dU, {16, 0x7feb352dU, 15, 0x846ca68bU})} << 32;
    sum += finalized(bits ^ (place * 0x9e3779b9U), {16, 0x85ebca6bU, 13, 0xc2b2ae35U});
  }
  return sum;
}

std::string plain_hashes(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += in_hexadecimal(plain_hash(tensor));
  return text;
}

// Two micro-steps in each step.
void train(Engine& engine, Net& net, int first, int steps, bool calls_backward_itself = false) {
  const int rank = engine.communicator().rank();
  for (int step = first; step < first + steps; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor loss = net(sample(step, micro, rank), true).square().mean();
      if (calls_backward_itself) {
        loss.backward();
      } else {
        engine.backward(loss);
      }
      engine.step();
    }
  }
}

RunComparison compare(const TemporaryFolder& folder, const std::string& a, const std::string& b) {
  return compare_runs(folder / a, folder / b);
}

}  // namespace

TEST_CASE("The log has the run, and each step with its losses, norm, rate, bytes and elements sent") {
  for (const int stage : {0, 1, 3}) {
    const TemporaryFolder folder;
    std::vector<double> norms(3);
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, with_log(sgd_config(stage, 2), folder / "a/b", false), communicator);
      for (int step = 0; step < 3; ++step) {
        train(engine, net, step, 1);
        if (communicator->rank() == 0) norms[step] = engine.get_global_grad_norm();
        engine.set_tokens_per_step(512);
      }
    });
    RunLogReader log(folder / "a/b");
    const RunRecord& run = log.run();
    CHECK((run.world_size == 2 && run.mesh.data == 2 && run.mesh.tensor == 1 && run.hosts.size() == 1));
    CHECK((run.precision == "fp32" && run.optimizer == "SGD" && run.device == "cpu" && !run.has_hashes));
    CHECK_THAT(run.libtorch, Catch::StartsWith("2."));
    REQUIRE(run.parameters.size() == 7);
    CHECK(
        (run.parameters[0].name == "first.weight" && run.parameters[0].shape == std::vector<int64_t>{7, 5}));
    CHECK((run.parameters[6].name == "scale" && !run.parameters[6].is_trained));
    const auto has = [&](const char* key, const std::string& value) {
      return std::ranges::any_of(run.settings, [&](const LoggedSetting& setting) {
        return setting.key == key && setting.value == value && setting.from == "line 1";
      });
    };
    CHECK(has("zero_optimization.stage", std::to_string(stage)));
    CHECK(has("optimizer.params.lr", "0.1"));
    CHECK(log.steps() == std::vector<int64_t>{1, 2, 3});
    CHECK(log.starts().empty());
    const std::vector<RunEvent> events = log.events();
    REQUIRE(events.size() == 2);
    CHECK((events[0].kind == RunEventKind::began && events[0].text == "2 ranks on " + run.hosts[0]));
    CHECK((events[1].kind == RunEventKind::ended && events[1].step == 3));
    int64_t trained = 0;
    for (const LoggedParameter& parameter : run.parameters) {
      int64_t elements = parameter.is_trained ? 1 : 0;
      for (const int64_t size : parameter.shape) elements *= size;
      trained += elements;
    }
    REQUIRE(run.states);
    CHECK((run.states->parameters == trained && run.states->value == 4 && run.states->gradient == 4));
    CHECK((run.states->master == 0 && run.states->moments == 0));
    for (int step = 0; step < 3; ++step) {
      const StepRecord record = log.step(step + 1);
      CHECK((record.gradient_norm == norms[step] && record.lr == 0.1 && !record.loss_scale &&
             !record.is_skipped));
      CHECK((record.samples == 4 * (step + 1) && record.seconds > 0 && record.gradients.empty()));
      CHECK(record.tokens == (step > 0 ? std::optional<int64_t>(512) : std::nullopt));
      CHECK((record.bytes.at("parameters") > 0 && record.elements.at("reduce_scatter") > 0));
      if (step > 0) continue;
      REQUIRE(record.losses.size() == 2);
      Net net;
      double sum = 0;
      for (int rank = 0; rank < 2; ++rank) {
        double mean = 0;
        for (int micro = 0; micro < 2; ++micro)
          mean += net(sample(0, micro, rank), true).square().mean().item<double>() / 2;
        CHECK(*record.losses[rank] == Approx(mean).epsilon(1e-6));
        sum += *record.losses[rank];
      }
      CHECK(*record.loss == sum / 2);
    }
  }
}

TEST_CASE("The log tells that an exception ended the engine") {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    try {
      Engine engine = make_engine(*net, with_log(sgd_config(0, 2), folder / "log", false), communicator);
      train(engine, net, 0, 2);
      throw std::runtime_error("the program's own");
    } catch (const std::runtime_error&) {
    }
  });
  const RunEvent last = RunLogReader(folder / "log").events().back();
  CHECK((last.kind == RunEventKind::failed && last.step == 2));
}

TEST_CASE("Hashes are those of whole gradients and values, at every stage") {
  for (const int stage : {0, 1, 2, 3}) {
    const TemporaryFolder folder;
    std::vector<at::Tensor> updated;
    std::vector<at::Tensor> first_values;
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, with_log(sgd_config(stage), folder / "log", true), communicator);
      engine.backward(net(sample(0, 0, communicator->rank()), true).square().mean());
      engine.step();
      const GatheredParameters whole(engine, net->parameters());
      if (communicator->rank() == 0) updated = copies_of(*net);
    });
    std::vector<at::Tensor> gradients;
    Net net;
    for (int rank = 0; rank < 2; ++rank) {
      net->zero_grad();
      net(sample(0, 0, rank), true).square().mean().backward();
      size_t next = 0;
      for (const at::Tensor& parameter : net->parameters()) {
        if (!parameter.requires_grad()) continue;
        if (rank == 0) gradients.push_back(parameter.grad().clone());
        if (rank == 1) gradients[next] = (gradients[next] + parameter.grad()) * 0.5F;
        ++next;
      }
    }
    RunLogReader log(folder / "log");
    CHECK(log.step(1).gradients == plain_hashes(gradients));
    // The module's own parameters come before those of its children.
    const at::Tensor scale = updated.front();
    updated.erase(updated.begin());
    CHECK(log.step(1).values == plain_hashes(updated));
    const std::vector<at::Tensor> all = net->parameters();
    std::vector<at::Tensor> first(all.begin() + 1, all.end());
    first.push_back(scale);
    CHECK(log.start(0).values == plain_hashes(first));
  }
}

TEST_CASE("A program that calls loss.backward() itself has no loss in the log, and everything else") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, with_log(sgd_config(2, 2), folder / name, true), communicator);
      train(engine, net, 0, 2, /*calls_backward_itself=*/*name == 'b');
    });
  }
  RunLogReader plain(folder / "b");
  CHECK((!plain.step(2).loss && plain.step(2).losses.empty() && plain.step(2).gradient_norm > 0));
  CHECK(RunLogReader(folder / "a").step(2).gradients == plain.step(2).gradients);
  CHECK(!compare(folder, "a", "b").parting);
}

TEST_CASE("A resumed run continues its log, and its first values are those of the checkpoint") {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& log, int stage, bool resumes, int steps) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, with_log(sgd_config(stage, 2), folder / log, true), communicator);
      if (resumes) engine.load_checkpoint(folder / "checkpoints");
      train(engine, net, resumes ? 3 : 0, steps);
      if (log != "broken" || resumes) return;
      engine.save_checkpoint(folder / "checkpoints");
      train(engine, net, 100, 2);  // lost: not in the checkpoint
    });
  };
  run("whole", 1, false, 6);
  run("broken", 1, false, 3);
  CHECK(compare(folder, "whole", "broken").parting->step == 4);
  run("broken", 3, true, 3);
  run("rest", 2, true, 3);
  RunLogReader broken(folder / "broken");
  CHECK(broken.steps() == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(broken.starts() == std::vector<int64_t>{0, 3});
  CHECK(!compare(folder, "whole", "broken").parting);
  const RunComparison rest = compare(folder, "whole", "rest");
  CHECK((!rest.parting && rest.first_step == 4 && rest.steps == 3));
}

TEST_CASE("A folder that cannot be written is an error on all ranks, with the key") {
  const TemporaryFolder folder;
  folder.write("file", "");
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    expect_throws(
        [&] { make_engine(*net, with_log(sgd_config(1), folder / "file/log", false), communicator); },
        "zerorun.run_log.path", "a folder below a file");
  });
}

namespace {

struct Way {
  std::string zero;
  std::optional<int64_t> bucket_numel = {};
  bool shares_memory = false;
};

std::vector<Way> ways(const TemporaryFolder& folder) {
  const std::string place = R"({"device": "nvme", "nvme_path": ")" + (folder / "").string() + '"';
  const std::string few_stay = R"(, "stage3_param_persistence_threshold": 0)";
  return {
      {R"("stage": 0)", 5'000},
      {R"("stage": 1)"},
      {R"("stage": 1)", 20'000, true},
      {R"("stage": 2, "overlap_comm": false)", 1},
      {R"("stage": 2)", 1'000'000, true},
      {R"("stage": 3)" + few_stay, 30'000},
      {R"("stage": 3, "stage3_prefetch_bucket_size": 10000, "stage3_max_live_parameters": 20000)" + few_stay},
      {R"("stage": 3)" + few_stay, {}, true},
      {R"("stage": 2, "offload_optimizer": )" + place + "}", 20'000},
      {R"("stage": 3, "offload_optimizer": )" + place + R"(}, "offload_param": )" + place +
           R"(, "max_in_cpu": 0})" + few_stay,
       20'000, true}};
}

}  // namespace

TEST_CASE("Runs of equal meaning have equal hashes: stages, ranks that share memory or not, files, buckets") {
  const std::string precisions[] = {"", R"("bf16": {"enabled": true}, )",
                                    R"("fp16": {"enabled": true, "initial_scale_power": 12}, )"};
  const TemporaryFolder folder;
  const std::vector<Way> table = ways(folder);
  int number = 0;
  const auto run = [&](const Way& way, int ranks, const std::string& precision,
                       const std::string& optimizer) {
    const std::string name = std::to_string(number++);
    const std::string config = R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, )" +
                               precision + R"("optimizer": {"type": ")" + optimizer +
                               R"(", "params": {"lr": 0.001}}, "zero_optimization": {)" + way.zero + "}}";
    train_tiny_gpt2(with_log(config, folder / name, true), {.world_size = ranks,
                                                            .steps = 3,
                                                            .bucket_numel = way.bucket_numel,
                                                            .inject_inf_steps = {1},
                                                            .shares_memory = way.shares_memory});
    return name;
  };
  std::map<std::array<int, 3>, std::string> references;
  const std::string optimizers[] = {"AdamW", "Lamb", "Muon", "Lion"};
  for (const auto& [row, ranks, precision, optimizer] : settings(table.size(), 4, 3, 4)) {
    const Way& way = table[row];
    const std::string& type = optimizers[optimizer];
    CAPTURE(way.zero, way.shares_memory, ranks + 1, precisions[precision], type);
    std::string& reference = references[{ranks, precision, optimizer}];
    RunComparison comparison;
    try {
      if (reference.empty()) reference = run({R"("stage": 0)"}, ranks + 1, precisions[precision], type);
      comparison = compare(folder, reference, run(way, ranks + 1, precisions[precision], type));
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what());
      continue;
    }
    INFO(to_text(comparison, "stage 0", "this"));
    CHECK((!comparison.parting && comparison.has_hashes && comparison.steps == 3));
    CHECK((comparison.reasons.empty() && comparison.differences.empty()));
  }
}

TEST_CASE("With an optimizer of the program, and with bf16 weights alone, all stages have equal hashes") {
  const TemporaryFolder folder;
  const std::string narrow =
      R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
          "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": )";
  for (const bool is_of_program : {true, false}) {
    for (int stage = 0; stage < 4; ++stage) {
      const std::string name = std::to_string(stage) + (is_of_program ? "own" : "narrow");
      run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
        Net net;
        torch::optim::AdamW optimizer(net->parameters(), 0.01);
        InitializeOptions options;
        if (is_of_program) options.optimizer = &optimizer;
        options.bucket_numel = stage == 1 ? std::optional<int64_t>(20) : std::nullopt;
        const std::string config =
            is_of_program ? no_optimizer_config(stage) : narrow + std::to_string(stage) + "}}";
        Engine engine = make_engine(*net, with_log(config, folder / name, true), communicator, options);
        for (int step = 0; step < 3; ++step) {
          const at::Tensor input = sample(step, 0, communicator->rank()).to(engine.dtype());
          engine.backward(net(input, true).to(at::kFloat).square().mean());
          engine.step();
        }
      });
      const RunComparison comparison = compare(folder, is_of_program ? "0own" : "0narrow", name);
      INFO(to_text(comparison, "stage 0", name));
      CHECK((!comparison.parting && comparison.has_hashes && comparison.steps == 3));
    }
  }
}

TEST_CASE("Split and divided models have the hashes of the whole model") {
  const TemporaryFolder folder;
  const std::string optimizer = R"("optimizer": {"type": "AdamW", "params": {"lr": 0.001}})";
  const auto run = [&](const std::string& name, int ranks, const std::string& mesh, int stage,
                       const std::string& precision) {
    const std::string config = R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, )" +
                               precision + optimizer + R"(, "zero_optimization": {"stage": )" +
                               std::to_string(stage) + "}}";
    train_tiny_gpt2(with_log(config, folder / name, true, R"(, "mesh": {)" + mesh + "}"),
                    {.world_size = ranks, .steps = 2, .splits = mesh.find("tensor") != std::string::npos});
  };
  const std::string meshes[] = {R"("tensor": 2)", R"("pipeline": 2)", R"("tensor": 2, "data": 2)",
                                R"("pipeline": 2, "data": 2)"};
  const std::string precisions[] = {"", R"("bf16": {"enabled": true}, )"};
  int number = 0;
  for (const auto& [mesh, precision] : settings(4, 2)) {
    CAPTURE(meshes[mesh], precisions[precision]);
    const int ranks = mesh < 2 ? 2 : 4;
    const std::string whole = "whole" + std::to_string(++number), first = "first" + std::to_string(number),
                      second = "second" + std::to_string(number);
    run(whole, 1, R"("data": 1)", 1, precisions[precision]);
    run(first, ranks, meshes[mesh], 0, precisions[precision]);
    run(second, ranks, meshes[mesh], 1, precisions[precision]);
    const RunComparison same = compare(folder, first, second);
    INFO(to_text(same, first, second));
    CHECK((!same.parting && same.has_hashes));
    RunLogReader a(folder / whole), b(folder / first);
    CHECK(a.start(0).values == b.start(0).values);
    const RunComparison close = compare(folder, whole, first);
    CHECK((close.reasons.size() >= 1 && !close.has_hashes));
    // With as many data ranks the data are the same.
    if (mesh < 2) CHECK(*a.step(1).loss == Approx(*b.step(1).loss).epsilon(precision == 0 ? 1e-6 : 1e-2));
    CHECK(b.step(1).losses.size() == (mesh < 2 ? 1 : 2));
  }
}

}  // namespace zerorun::testing
