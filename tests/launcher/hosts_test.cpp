// Compares the parsing of hostfiles and filters with DeepSpeed's (data/launcher_parse.json, recorded from
// DeepSpeed 0.19.8), and tests where the ranks of a job are placed.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/node_job.h"
#include "launcher/placement.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using nlohmann::json;
using zerorun::UserError;
using namespace zerorun::launcher;
using Hosts = std::vector<Host>;
using Nodes = std::vector<Node>;

namespace {

const json& recorded() {
  static const json data =
      json::parse(std::ifstream(ZERORUN_SOURCE_DIR "/tests/launcher/data/launcher_parse.json"));
  return data;
}

Hosts pool() {
  Hosts hosts;
  for (const json& host : recorded()["filter_pool"]) hosts.push_back({host[0], host[1]});
  return hosts;
}

Nodes nodes_of(const json& result) {
  Nodes nodes;
  for (const json& node : result) nodes.push_back({node[0], node[1].get<std::vector<int>>()});
  return nodes;
}

}  // namespace

TEST_CASE("hostfiles are read as DeepSpeed reads them, but malformed entries are refused") {
  // DeepSpeed accepts these entries: it reads `4x` as 4, takes a colon as part of a host's name, and allows
  // any number of slots. ZeroRun refuses them.
  const std::set<std::string> refused_here = {"worker-0 slots=4x\n", "worker-0:2 slots=4\n",
                                              "worker-0 slots=99999999999999999999\n"};
  int equal = 0;
  for (const json& row : recorded()["hostfile"]) {
    const std::string text = row["hostfile"];
    CAPTURE(text);
    if (!row["error"].is_null() || refused_here.contains(text)) {
      CHECK_THROWS_AS(parse_hostfile(text, "hosts"), UserError);
      continue;
    }
    Hosts expected;
    for (const json& host : row["result"]) expected.push_back({host[0], host[1]});
    CHECK(parse_hostfile(text, "hosts") == expected);
    ++equal;
  }
  CHECK(equal == 10);
}

TEST_CASE("mistakes in a hostfile name the file and the line") {
  const auto parse = [](const char* text) { return parse_hostfile(text, "hosts"); };
  CHECK_THROWS_WITH(parse("# c\n\na slots=x\n"), Contains("hosts:3: slots: ") && Contains("found 'x'"));
  CHECK_THROWS_WITH(parse("a slots=1\na slots=2\n"), Contains("hosts:2: ") && Contains("listed twice"));
  CHECK_THROWS_WITH(parse("a\n"), Contains("hosts:1: ") && Contains("`HOST slots=N`"));
  CHECK_THROWS_WITH(parse(""), Contains("hosts: no host in it"));
  // A host's name is passed to ssh: it must not look like an option, nor have characters that a shell
  // interprets.
  for (const char* name : {"-oProxyCommand=id", "a;id", "$(id)", "`id`", "a|b", "u@-o", "-F::evil",
                           "u@-F::evil", "@a", "u@", "a&b"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(parse((std::string(name) + " slots=1\n").c_str()),
                      Contains("is not the name or address"));
  }
  CHECK(parse("fe80::1%eth0 slots=1\n") == Hosts{{"fe80::1%eth0", 1}});
  CHECK_THROWS_WITH(read_hostfile("/nowhere/hosts"), Contains("--hostfile /nowhere/hosts"));
  CHECK_THROWS_WITH(read_hostfile("/tmp"), Contains("--hostfile /tmp"));
}

TEST_CASE("DeepSpeed's usual hostfile is read, unless the options say where the job runs") {
  const zerorun::testing::TemporaryFolder folder;
  const std::string usual = folder.write("hostfile", "a slots=1\n");
  LaunchOptions options;
  CHECK(choose_hostfile(options, folder / "none") == "");
  CHECK(choose_hostfile(options, folder / "") == "");
  CHECK(choose_hostfile(options, usual) == usual);
  options.hostfile = "mine";
  CHECK(choose_hostfile(options, usual) == "mine");
  for (const int way : {0, 1, 2}) {
    LaunchOptions elsewhere;
    if (way == 0) elsewhere.this_host_alone = true;
    if (way == 1) elsewhere.node_rank = 0;
    if (way == 2) elsewhere.rdzv_endpoint = "a:1";
    CHECK(choose_hostfile(elsewhere, usual) == "");
  }
}

TEST_CASE("a hostfile of many hosts is read at once, and one that has no end is refused") {
  std::string text;
  for (int host = 0; host < 65'536; ++host) text += "h" + std::to_string(host) + " slots=1\n";
  CHECK(parse_hostfile(text, "hosts").size() == 65'536);
  CHECK_THROWS_WITH(parse_hostfile(text + "more slots=1\n", "hosts"), Contains("at most 65536 hosts"));
  CHECK_THROWS_WITH(read_hostfile("/dev/zero"), Contains("it has more than 16 MiB"));
  const zerorun::testing::TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_hostfile(folder / "pipe"), Contains("into which nobody writes"));
}

TEST_CASE("torchrun's words for a number of ranks count what this machine has") {
  LaunchOptions options;
  const auto ranks = [&](const std::string& kind, const ThisMachine& machine) {
    options.ranks_by_kind = kind;
    return place_job(options, std::nullopt, machine).placement.world_size();
  };
  const ThisMachine gpus{"here", 4, "0,1,2", 16};
  const ThisMachine bare{"here", 0, "", 16};
  CHECK_THROWS_WITH(ranks("+2", gpus), Contains("--num_gpus +2: expected a number"));
  CHECK(ranks("gpu", gpus) == 3);
  CHECK(ranks("auto", gpus) == 3);
  CHECK(ranks("cpu", gpus) == 16);
  CHECK(ranks("auto", bare) == 16);
  CHECK_THROWS_WITH(ranks("gpu", bare), Contains("--num_gpus gpu: this machine has no GPU"));
  CHECK_THROWS_WITH(place_job(options, Hosts{{"a", 1}}, bare), Contains("with a hostfile give a number"));
}

TEST_CASE("--include and --exclude select what DeepSpeed's parser selects") {
  int equal = 0;
  for (const json& row : recorded()["include_exclude"]) {
    if (row["mode"] == "both" || row["value"] == "") continue;  // options_test.cpp tests these
    const std::string filter = row["value"];
    const bool include = row["mode"] == "include";
    CAPTURE(include, filter);
    const auto select = [&] {
      return include ? include_slots(pool(), filter) : exclude_slots(pool(), filter);
    };
    if (!row["error"].is_null() || row["result"].empty()) {
      CHECK_THROWS_WITH(select(), Contains(include ? "--include " : "--exclude "));
      continue;
    }
    CHECK(select() == nodes_of(row["result"]));
    ++equal;
  }
  CHECK(equal == 29);
}

TEST_CASE("--num_nodes and --num_gpus select the slots that DeepSpeed selects, if the hosts have them") {
  int equal = 0;
  for (const json& row : recorded()["num_nodes_num_gpus"]) {
    const auto given = [&](const char* name) {
      const int value = row[name];
      return value > 0 ? std::optional(value) : std::nullopt;
    };
    const std::optional<int> nodes = given("num_nodes");
    const std::optional<int> per_node = given("num_gpus");
    CAPTURE(nodes.value_or(-1), per_node.value_or(-1));
    const Nodes expected = nodes_of(row["result"]);
    const Hosts hosts = pool();
    bool exists = nodes.value_or(1) <= 3;
    for (size_t node = 0; node < expected.size(); ++node)
      exists = exists && static_cast<int>(expected[node].slots.size()) <= hosts[node].slots;
    if (exists) {
      CHECK(first_slots(hosts, nodes, per_node) == expected);
      ++equal;
    } else {
      CHECK_THROWS_WITH(first_slots(hosts, nodes, per_node), Contains("--num_"));
    }
  }
  CHECK(equal == 22);
}

TEST_CASE("filters say which part is wrong") {
  CHECK_THROWS_WITH(include_slots(pool(), "worker-9"),
                    Contains("'worker-9' is not among") && Contains("worker-0, worker-1, worker-2"));
  CHECK_THROWS_WITH(include_slots(pool(), "worker-2:2"),
                    Contains("slot 2 of worker-2 does not exist: it has 2"));
  CHECK_THROWS_WITH(include_slots(pool(), "worker-0:0-2"), Contains("found '0-2'"));
  CHECK_THROWS_WITH(exclude_slots({{"a", 1}}, "a"), Contains("--exclude a: no slot is left"));
  CHECK_THROWS_WITH(include_slots({{"a", 0}, {"b", 1}}, "a"), Contains("has no slots"));
  CHECK(first_slots({{"a", 0}, {"b", 1}}, 1, {}) == Nodes{{"b", {0}}});
}

TEST_CASE("ranks are numbered host by host") {
  const Placement placement({{"a", {0, 2}}, {"b", {1}}, {"c", {0, 1, 3}}});
  CHECK(placement.world_size() == 6);
  const int nodes[] = {0, 0, 1, 2, 2, 2};
  const int local_ranks[] = {0, 1, 0, 0, 1, 2};
  const int slots[] = {0, 2, 1, 0, 1, 3};
  for (int rank = 0; rank < 6; ++rank) {
    CAPTURE(rank);
    CHECK(placement.node_of(rank) == nodes[rank]);
    CHECK(placement.local_rank(rank) == local_ranks[rank]);
    CHECK(placement.slot_of(rank) == slots[rank]);
  }
  CHECK(placement.first_rank(2) == 3);
  CHECK(placement.local_world_size(2) == 3);
  CHECK_THROWS(placement.node_of(6));
  CHECK_THROWS(Placement(Nodes{{"a", {}}}));
}

namespace {

struct Placed {
  Nodes nodes;
  std::optional<int> node;
  std::string visible;

  bool operator==(const Placed&) const = default;
};

Placed place(const LaunchOptions& options, const std::optional<Hosts>& hosts = {}, int gpus = 0,
             const std::string& visible = "") {
  const ThisMachine machine = {"node7.example.org", gpus, visible, 1, {"127.0.0.1", "192.0.2.7"}};
  const JobPlacement job = place_job(options, hosts, machine);
  NodeOrder order;
  order.nodes = job.placement.nodes();
  order.node = job.node.value_or(0);
  order.slots_named = names_slots(options);
  const std::string devices = job.node ? node_environment(order, {}, machine, -1).visible_devices : "";
  return {job.placement.nodes(), job.node, devices};
}

LaunchOptions include(const std::string& filter) {
  LaunchOptions options;
  options.include = filter;
  return options;
}

LaunchOptions exclude(const std::string& filter) {
  LaunchOptions options;
  options.exclude = filter;
  return options;
}

LaunchOptions ranks(int number) {
  LaunchOptions options;
  options.ranks_per_node = number;
  return options;
}

LaunchOptions node(int number) {
  LaunchOptions options;
  options.node_rank = number;
  return options;
}

}  // namespace

TEST_CASE("without a hostfile the job runs on this machine") {
  CHECK(place({}) == Placed{{{"localhost", {0}}}, 0, ""});
  CHECK(place({}, {}, 2) == Placed{{{"localhost", {0, 1}}}, 0, "0,1"});
  CHECK(place({}, {}, 8, "5,6") == Placed{{{"localhost", {0, 1}}}, 0, "5,6"});
  CHECK(place(ranks(3)) == Placed{{{"localhost", {0, 1, 2}}}, 0, ""});
  CHECK(place(ranks(2), {}, 8, "5,6,7") == Placed{{{"localhost", {0, 1}}}, 0, "5,6"});
  CHECK(place(ranks(3), {}, 2) == Placed{{{"localhost", {0, 1, 2}}}, 0, "0,1"});
  for (const char* name : {"localhost", "127.0.0.1", "node7", "node7.example.org"}) {
    CAPTURE(name);
    CHECK(place(include(std::string(name) + ":2,0"), {}, 4, "7") ==
          Placed{{{"localhost", {0, 2}}}, 0, "0,2"});
  }
  CHECK(place(include("localhost"), {}, 2) == Placed{{{"localhost", {0, 1}}}, 0, "0,1"});
  CHECK(place(include("localhost:900")) == Placed{{{"localhost", {900}}}, 0, "900"});
  CHECK(place(include("localhost")) == Placed{{{"localhost", {0}}}, 0, "0"});
  CHECK(place(exclude("localhost:1"), {}, 3) == Placed{{{"localhost", {0, 2}}}, 0, "0,2"});
  CHECK_THROWS_WITH(place(include("localhost:0,9"), {}, 4), Contains("slot 9 of localhost does not exist"));
  CHECK_THROWS_WITH(place(include("other:0")), Contains("'other' is not among"));
  for (const char* filter :
       {":0", "localhost:", "localhost:0,", "localhost:,1", "localhost:-1", "localhost:x", "localhost:0-2",
        "localhost:0 ,1", "localhost:99999999999", "node:0", "@localhost", "localhost@", "localhost:0:1"}) {
    CAPTURE(filter);
    CHECK_THROWS_AS(place(include(filter)), UserError);
  }
  LaunchOptions two;
  two.nodes = 2;
  CHECK_THROWS_WITH(place(two), Contains("--num_nodes 2 needs a --hostfile"));
}

TEST_CASE("with a hostfile, each launcher runs its host's ranks") {
  const Hosts hosts = {{"a", 2}, {"b", 2}};
  const Nodes both = {{"a", {0, 1}}, {"b", {0, 1}}};
  CHECK(place(node(0), hosts) == Placed{both, 0, ""});
  CHECK(place(node(1), hosts, 2) == Placed{both, 1, "0,1"});
  CHECK(place({}, Hosts{{"node7", 3}}) == Placed{{{"node7", {0, 1, 2}}}, 0, ""});
  LaunchOptions filtered = exclude("a:0");
  filtered.node_rank = 0;
  CHECK(place(filtered, hosts, 2) == Placed{{{"a", {1}}, {"b", {0, 1}}}, 0, "1"});
  CHECK_THROWS_WITH(place(node(2), hosts), Contains("--node_rank 2: the job has 2 hosts"));
  CHECK(place({}, hosts) == Placed{both, std::nullopt, ""});
  CHECK(place(include("b"), hosts) == Placed{{{"b", {0, 1}}}, std::nullopt, ""});
  for (const char* name : {"NODE7", "Node7.Example.org", "::1", "LOCALHOST", "192.0.2.7"})
    CHECK(place({}, Hosts{{"a", 1}, {name, 1}}).node == 1);
  CHECK(place({}, Hosts{{"a", 1}, {"192.0.2.70", 1}}).node == std::nullopt);
  CHECK(place({}, Hosts{{"a", 1}, {"node7", 1}}) == Placed{{{"a", {0}}, {"node7", {0}}}, 1, ""});
  CHECK_THROWS_WITH(place(node(1), hosts, 1), Contains("slot 1 does not exist: this machine has 1 GPU,"));
}

TEST_CASE("hosts that are left out have no ranks, and the others get new numbers") {
  const ThisMachine machine{"c", 0, ""};
  const JobPlacement whole = place_job({}, Hosts{{"a", 2}, {"b", 1}, {"c", 2}}, machine);
  const JobPlacement left = without(whole, {0});
  CHECK(left.placement.nodes() == Nodes{{"b", {0}}, {"c", {0, 1}}});
  CHECK(left.placement.world_size() == 3);
  CHECK(left.node == 1);
  CHECK(without(whole, {1, 2}).node == std::nullopt);
}

TEST_CASE("without a hostfile but with a node rank, all hosts have the same number of ranks") {
  LaunchOptions options = ranks(2);
  options.nodes = 3;
  options.node_rank = 2;
  CHECK(place(options) == Placed{{{"node 0", {0, 1}}, {"node 1", {0, 1}}, {"node 2", {0, 1}}}, 2, ""});
  options.ranks_per_node.reset();
  CHECK_THROWS_WITH(place(options), Contains("needs") && Contains("--num_gpus"));
  // As with torchrun, a job has one host unless its number is given.
  CHECK(place(node(0)) == Placed{{{"localhost", {0}}}, 0, ""});
  CHECK_THROWS_WITH(place(node(1)), Contains("--node_rank 1: the job has 1 host") && Contains("--num_nodes"));
  LaunchOptions named = include("localhost:1");
  named.node_rank = 0;
  CHECK(place(named) == Placed{{{"localhost", {1}}}, 0, "1"});
}
