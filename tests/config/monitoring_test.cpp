// Tests of the sections that say what a run writes and prints about itself.
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "config/check.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::test;

TEST_CASE("without their sections nothing is monitored") {
  const MonitoringConfig off = parse_config(with(""), "conf", 1).monitoring;
  CHECK(!off.writes_files());
  CHECK(!off.wandb.enabled);
  CHECK(!off.comet.enabled);
  CHECK(!off.comms.enabled);
  CHECK(!off.flops.enabled);
  CHECK(!off.run_log.is_on());
  CHECK(!off.memory_breakdown);
  CHECK(!off.dump_state);
  CHECK(off.csv.job_name == "DeepSpeedJobName");
  CHECK(off.tensorboard.output_path.empty());
  CHECK(off.wandb.project == "deepspeed");
  CHECK(off.comet.samples_log_interval == 100);
  CHECK(off.comms.prof_all);
  CHECK(off.flops.profile_step == 1);
}

TEST_CASE("each key of the monitors is read, and none of them is a warning") {
  const Config config = parse_config(with(R"(
      "csv_monitor": {"enabled": true, "output_path": "a", "job_name": "b"},
      "tensorboard": {"enabled": true, "output_path": "c", "job_name": "d"},
      "wandb": {"enabled": true, "group": "e", "team": "f", "project": "g"},
      "comet": {"enabled": true, "samples_log_interval": 7, "project": "h", "workspace": "i", "api_key": "j",
                "experiment_name": "k", "experiment_key": "l", "online": false, "mode": "get"},
      "comms_logger": {"enabled": true, "verbose": true, "prof_all": false, "debug": true,
                       "prof_ops": ["all_reduce"]},
      "flops_profiler": {"enabled": true, "profile_step": 5, "detailed": false, "output_file": "m"},
      "zerorun": {"run_log": {"path": "n", "hashes": true}},
      "memory_breakdown": true, "dump_state": true)"),
                                     "conf", 1);
  CHECK(config.warnings.empty());
  const MonitoringConfig& read = config.monitoring;
  CHECK(read.writes_files());
  CHECK(read.csv.output_path == "a");
  CHECK(read.csv.job_name == "b");
  CHECK(read.tensorboard.output_path == "c");
  CHECK(read.tensorboard.job_name == "d");
  CHECK(read.wandb.group == "e");
  CHECK(read.wandb.team == "f");
  CHECK(read.wandb.project == "g");
  CHECK(read.comet.samples_log_interval == 7);
  CHECK(read.comet.project == "h");
  CHECK(read.comet.workspace == "i");
  CHECK(read.comet.api_key == "j");
  CHECK(read.comet.experiment_name == "k");
  CHECK(read.comet.experiment_key == "l");
  CHECK(read.comet.online == false);
  CHECK(read.comet.mode == "get");
  CHECK(read.comms.verbose);
  CHECK(!read.comms.prof_all);
  CHECK(read.comms.debug);
  CHECK(read.comms.prof_ops == std::vector<std::string>{"all_reduce"});
  CHECK(read.flops.profile_step == 5);
  CHECK(!read.flops.detailed);
  CHECK(read.flops.output_file == "m");
  CHECK(read.run_log.path == "n");
  CHECK(read.run_log.has_hashes());
  CHECK(read.memory_breakdown);
  CHECK(read.dump_state);
  CHECK(config.resolved.find("\"api_key\": \"(secret)\"") != std::string::npos);
}

TEST_CASE("a timeline has an archive, steps in order and the memory of its ring") {
  const TimelineConfig off = parse_config(with(""), "conf", 1).monitoring.timeline;
  CHECK(!off.enabled);
  CHECK(off.path == "timeline.tar");
  CHECK(!off.steps);
  CHECK(off.ring_mib == 4);
  const auto section = [](const std::string& keys) {
    return with(R"("zerorun": {"timeline": {)" + keys + "}}");
  };
  const Config config = parse_config(
      section(R"("enabled": true, "path": "a/b.tar", "steps": [3, 5], "ring_mib": 16)"), "conf", 1);
  CHECK(config.warnings.empty());
  CHECK(config.monitoring.timeline.enabled);
  CHECK(config.monitoring.timeline.path == "a/b.tar");
  CHECK(config.monitoring.timeline.steps == std::pair<int64_t, int64_t>(3, 5));
  CHECK(config.monitoring.timeline.ring_mib == 16);
  for (const char* steps : {"[5, 3]", "[0, 3]", "[1.5, 3]", "[-1, 3]"}) {
    const std::vector<Refusal> errors =
        refusals(section(std::string(R"("enabled": true, "steps": )") + steps));
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].path == "zerorun.timeline.steps");
    CHECK(errors[0].expected == "the first and the last step, whole numbers from 1");
    CHECK(errors[0].found == steps);
  }
}

TEST_CASE("a kind of collectives that does not exist is a warning, and DeepSpeed's longer names are kinds") {
  const auto warnings = [](const std::string& names) {
    return parse_config(with(R"("comms_logger": {"enabled": true, "prof_ops": [)" + names + "]}"), "conf", 1)
        .warnings;
  };
  CHECK(warnings(R"("all_gather_into_tensor", "reduce_scatter_tensor", "send")").empty());
  REQUIRE(warnings(R"("all_to_all")").size() == 1);
  CHECK(warnings(R"("all_to_all")")[0].find("\"all_to_all\" records nothing") != std::string::npos);
}
