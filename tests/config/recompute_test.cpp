#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "tests/config/refusal.h"

using namespace zerorun::test;
using zerorun::parse_config;
using zerorun::RecomputeConfig;

namespace {

std::string text_of(const std::string& keys) {
  return "{\"train_batch_size\": 1, " + keys + "}";
}

RecomputeConfig read(const std::string& keys) {
  return parse_config(text_of(keys), "conf", 1).recompute;
}

}  // namespace

TEST_CASE("zerorun.recompute chooses blocks by number, by name or by bytes") {
  CHECK(read(R"("zerorun": {"recompute": {"every": 3}})").every == 3);
  CHECK(read(R"("zerorun": {"recompute": {"patterns": ["h.*.mlp", "head"]}})").patterns ==
        std::vector<std::string>{"h.*.mlp", "head"});
  for (const auto& [text, bytes] : {std::pair<const char*, int64_t>{"1000", 1000},
                                    {"8G", int64_t{8} << 30},
                                    {"1.5K", 1536},
                                    {"0", 0},
                                    {"2T", int64_t{2} << 40}}) {
    CAPTURE(text);
    CHECK(read(R"("zerorun": {"recompute": {"budget": ")" + std::string(text) + "\"}}").budget == bytes);
  }
  CHECK(read(R"("zerorun": {"recompute": {"every": 1}})").nvme_path.empty());
  CHECK(read(R"("zerorun": {"recompute": {"every": 1, "nvme_path": "/disk"}})").nvme_path == "/disk");
}

TEST_CASE("activation_checkpointing recomputes all blocks, unless zerorun.recompute says otherwise") {
  CHECK(read(R"("steps_per_print": 1)").every == 0);
  const RecomputeConfig all = read(R"("activation_checkpointing": {"partition_activations": true,
                                      "cpu_checkpointing": true, "profile": true})");
  CHECK(all.every == 1);
  CHECK((all.partitioned && all.on_host && all.timed && !all.contiguous));
  const RecomputeConfig in_buffer =
      read(R"("activation_checkpointing": {"contiguous_memory_optimization": true,
                                            "number_checkpoints": 4})");
  CHECK((in_buffer.contiguous && in_buffer.checkpoints == 4));
  CHECK(!read(R"("activation_checkpointing": {"number_checkpoints": null})").checkpoints);
  CHECK(read(R"("activation_checkpointing": {}, "zerorun": {"recompute": {"every": 4}})").every == 4);
}

TEST_CASE("zerorun.recompute with two choices, none, or a budget that is no number of bytes is refused") {
  const auto refused = [](const std::string& recompute) {
    const auto found = refusals(text_of(R"("zerorun": {"recompute": )" + recompute + "}"));
    REQUIRE(found.size() == 1);
    return found[0];
  };
  CHECK(refused(R"({"every": 1, "budget": "1G"})").found == "every, budget");
  CHECK(refused("{}").found == "none of them");
  CHECK(refused(R"({"nvme_path": "/disk"})").found == "none of them");
  CHECK(refused(R"({"every": 0})").path == "zerorun.recompute.every");
  for (const char* budget : {"8X", "G", "8GB", "-1", "1e30T", "nan", ""}) {
    CAPTURE(budget);
    const auto found = refused(R"({"budget": ")" + std::string(budget) + "\"}");
    CHECK(found.path == "zerorun.recompute.budget");
    CHECK(found.remedy == "write a number with K, M, G or T, which are powers of 1024");
  }
}

TEST_CASE("torch_autocast needs fp32 parameters, and bf16") {
  const std::string on = R"("torch_autocast": {"enabled": true})";
  CHECK(parse_config(text_of(on), "conf", 1).precision.autocast);
  CHECK(!parse_config(text_of(R"("torch_autocast": {"enabled": false})"), "conf", 1).precision.autocast);
  const auto both = refusals(text_of(R"("bf16": {"enabled": true}, )" + on));
  REQUIRE(both.size() == 1);
  CHECK(both[0].path == "torch_autocast.enabled");
  CHECK(both[0].remedy == "keep one of the two: with bf16 the parameters themselves are converted");
  const auto half = refusals(text_of(R"("torch_autocast": {"enabled": true, "dtype": "float16"})"));
  REQUIRE(half.size() == 1);
  CHECK(half[0].path == "torch_autocast.dtype");
}
