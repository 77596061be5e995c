// Tests the key table: it has every key that DeepSpeed knows, and the reader reads every key of the table.
#include <algorithm>
#include <catch2/catch.hpp>
#include <regex>
#include <set>
#include <string>

#include "base/memory_report.h"
#include "config/check.h"
#include "config/key_table.h"
#include "config/suggestion.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::config;
using namespace zerorun::test;

namespace {

/// Returns a configuration that sets `path` to `value`. If `path` is a parameter of an optimizer or a
/// schedule, the configuration also has `type`.
std::string config_with(const std::string& path, const std::string& value, const std::string& type) {
  std::string text = value;
  std::string rest = path;
  for (std::size_t dot; !rest.empty(); rest.resize(dot == std::string::npos ? 0 : dot)) {
    dot = rest.rfind('.');
    const std::string name = dot == std::string::npos ? rest : rest.substr(dot + 1);
    const bool typed = name == "params" && rest != path;
    text = "{" + std::string(typed ? "\"type\": \"" + type + "\", " : "") + "\"" + name + "\": " + text + "}";
  }
  return text;
}

std::string type_for(const KeyFact& fact) {
  if (!fact.types.empty()) return split(std::string(fact.types), ' ').front();
  return fact.path.substr(0, 9) == "scheduler" ? "WarmupLR" : "Adam";
}

/// Returns the path of the key, and the path with the key's other name if it has one.
std::vector<std::string> names_of(const KeyFact& fact) {
  std::vector<std::string> paths = {std::string(fact.path)};
  if (!fact.other_name.empty()) paths.push_back(join_path(section_of(fact.path), fact.other_name));
  return paths;
}

std::vector<Diagnostic> messages(const std::string& text) {
  return check_config(text, "conf").diagnostics.messages();
}

bool any_names(const std::vector<Diagnostic>& found, const std::string& path, Severity severity) {
  return std::any_of(found.begin(), found.end(), [&](const Diagnostic& diagnostic) {
    return diagnostic.mistake.path == path && diagnostic.severity == severity;
  });
}

}  // namespace

/// Whether the key is in an object whose keys are not checked.
bool is_unchecked(std::string_view path) {
  for (auto outer = section_of(path); !outer.empty(); outer = section_of(outer)) {
    const KeyFact* fact = find_key(outer);
    if (fact && fact->type == KeyType::object) return true;
  }
  return false;
}

TEST_CASE("each key of DeepSpeed has a row, or is in a section that has one row") {
  int rows = 0;
  int unchecked = 0;
  for (const std::string& path : data_lines("deepspeed_keys.txt")) {
    INFO(path);
    const bool is_inside = is_unchecked(path);
    CHECK((find_key(path) != nullptr) != is_inside);
    ++(is_inside ? unchecked : rows);
  }
  CHECK(rows == 318);
  CHECK(unchecked == 118);
}

TEST_CASE("the rows of the table are complete and fit together") {
  for (const KeyFact* fact : key_facts()) {
    INFO(fact->path);
    CHECK(!fact->meaning.empty());
    const bool reasoned = fact->status == KeyStatus::no_effect || fact->status == KeyStatus::not_supported ||
                          fact->status == KeyStatus::replaced;
    CHECK(reasoned == !fact->reason.empty());
    if (const auto section = section_of(fact->path); !section.empty()) {
      const KeyFact* outer = find_key(section);
      REQUIRE(outer);
      CHECK(outer->type == KeyType::section);
    }
    if (fact->status == KeyStatus::old_name) {
      const KeyFact* present = find_key(fact->target);
      REQUIRE(present);
      CHECK(present->status != KeyStatus::old_name);
      const bool same_type = present->type == fact->type;
      CHECK((same_type || (present->type == KeyType::section && fact->type == KeyType::boolean)));
    }
    if (fact->type == KeyType::section && !fact->switch_key.empty()) {
      const KeyFact* inner = find_key(join_path(fact->path, fact->switch_key));
      REQUIRE(inner);
      CHECK((inner->fallback == "false" || inner->fallback == "\"none\""));
    }
    for_each_word(fact->unsupported_choices,
                  [&](std::string_view word) { CHECK(has_word(fact->choices, word)); });
    for_each_word(fact->any_case, [&](std::string_view word) { CHECK(has_word(fact->choices, word)); });
    for_each_word(fact->types, [&](std::string_view word) {
      const KeyFact* type = find_key(join_path(section_of(section_of(fact->path)), "type"));
      REQUIRE(type);
      CHECK(has_word(type->choices, word));
    });
  }
}

TEST_CASE("each default fits its own row") {
  for (const KeyFact* fact : key_facts()) {
    if (fact->fallback.empty()) continue;
    const std::string path(fact->path);
    INFO(path);
    const auto found = messages(config_with(path, std::string(fact->fallback), type_for(*fact)));
    CHECK(!any_names(found, path, Severity::error));
  }
}

TEST_CASE("each key is read, by all its names: a value of a wrong kind is refused at its place") {
  int read = 0;
  for (const KeyFact* fact : key_facts()) {
    if (fact->type == KeyType::anything) continue;
    for (const std::string& path : names_of(*fact)) {
      INFO(path);
      CHECK(any_names(messages(config_with(path, "[[]]", type_for(*fact))),
                      path + (fact->per_group ? "[0]" : ""), Severity::error));
      ++read;
    }
  }
  CHECK(read > 320);
}

TEST_CASE("\"auto\" is listed for the keys that may have it and refused for all others") {
  int automatic = 0;
  for (const KeyFact* fact : key_facts()) {
    const bool any_text =
        fact->type == KeyType::anything || fact->type == KeyType::text || fact->type == KeyType::text_list;
    if (any_text) continue;
    for (const std::string& path : names_of(*fact)) {
      INFO(path);
      const auto found = messages(config_with(path, "\"auto\"", type_for(*fact)));
      const bool takes = fact->automatic != Automatic::nobody;
      automatic += takes ? 1 : 0;
      CHECK(any_names(found, path, Severity::error) == !takes);
      if (takes) CHECK(any_names(found, path, Severity::note));
    }
  }
  CHECK(automatic > 60);
}

TEST_CASE("no key has two rows") {
  std::set<std::string> paths;
  for (const KeyFact* fact : key_facts()) {
    for (const std::string& path : names_of(*fact)) CHECK(paths.insert(path).second);
  }
}

TEST_CASE("the error about an unknown key names the intended key, or the section where the key belongs") {
  struct Row {
    const char* settings;
    const char* place;
    const char* remedy;
  };
  const Row rows[] = {
      {R"("gradient_cliping": 1)", "2:1 gradient_cliping", "did you mean \"gradient_clipping\"?"},
      {R"("Zero_Optimisation": {})", "2:1 Zero_Optimisation", "did you mean \"zero_optimization\"?"},
      {R"("zero_optimization": {"stgae": 1})", "2:23 zero_optimization.stgae", "did you mean \"stage\"?"},
      {R"("zero_optimization": {"ofload_param": 1})", "2:23 zero_optimization.ofload_param",
       "did you mean \"offload_param\"?"},
      {R"("zero_optimization": {"stage3_max_life_parameters": 1})",
       "2:23 zero_optimization.stage3_max_life_parameters", "did you mean \"stage3_max_live_parameters\"?"},
      {R"("zero_optimization": {"max_reuse_distanse": 1})", "2:23 zero_optimization.max_reuse_distanse",
       "did you mean \"max_reuse_distance\"?"},
      {R"("sub_group_size": 1)", "2:1 sub_group_size",
       "the key belongs elsewhere: zero_optimization.sub_group_size"},
      {R"("max_live_parameters": 1)", "2:1 max_live_parameters",
       "the key belongs elsewhere: zero_optimization.max_live_parameters"},
      {R"("stage": 2)", "2:1 stage", "the key belongs elsewhere: zero_optimization.stage"},
      {R"("offload_optimizer": {})", "2:1 offload_optimizer",
       "the key belongs elsewhere: zero_optimization.offload_optimizer"},
      {R"("zero_optimization": {"fp16": {}})", "2:23 zero_optimization.fp16",
       "the key belongs elsewhere: fp16 at the top level"},
      {R"("zero_optimization": {"max_grad_norm": 1})", "2:23 zero_optimization.max_grad_norm",
       "remove it (remarks can be written as // comments)"},
      {R"("max_grad_nrom": 1)", "2:1 max_grad_nrom", "write gradient_clipping"},
      {R"("Learning-Rate": 1)", "2:1 Learning-Rate", "write optimizer.params.lr"},
      {R"("zero_optimization": {"verbose": 1})", "2:23 zero_optimization.verbose",
       "the key belongs elsewhere: comms_logger.verbose"},
      {R"("fp16": {"enabled": false, "fp16": true})", "2:28 fp16.fp16",
       "remove it (remarks can be written as // comments)"},
      {R"("weight-decay": 0.1)", "2:1 weight-decay",
       "the key belongs elsewhere: optimizer.params.weight_decay"},
      {R"("gradient-clipping": 0.1)", "2:1 gradient-clipping", "did you mean \"gradient_clipping\"?"},
      {R"("bfp16": {"enabled": true})", "2:1 bfp16", "did you mean \"bf16\"?"},
      {R"("msamp": {"enabled": true, "opt_level": "O2"})", "2:1 msamp",
       "write \"bf16\": {\"enabled\": true}, the narrowest dtype that keeps the range of fp32"},
      {R"("fp8": {"enabled": true})", "2:1 fp8",
       "write \"bf16\": {\"enabled\": true}, the narrowest dtype that keeps the range of fp32"},
      {R"("fp16": {"enabled": true, "dynamic_loss_scale": true})", "2:27 fp16.dynamic_loss_scale",
       "write \"loss_scale\": 0, for dynamic loss scaling"},
      {R"("tensor_parallel_degree": 2)", "2:1 tensor_parallel_degree", "write tensor_parallel.autotp_size"},
      {R"("tensor_parallel": {"tp_size": 2})", "2:21 tensor_parallel.tp_size",
       "did you mean \"autotp_size\"?"},
      {R"("log": {"steps_per_print": 10, "file": "x"})", "2:1 log",
       "its keys belong elsewhere: steps_per_print at the top level"},
      {R"("checkpoint": {"tag_validation_enabled": true})", "2:16 checkpoint.tag_validation_enabled",
       "did you mean \"tag_validation\"?"},
      {R"("tag_validation_enabled": true)", "2:1 tag_validation_enabled", "write checkpoint.tag_validation"},
      {R"("batch_size": 8)", "2:1 batch_size", "did you mean \"train_batch_size\"?"},
      {R"("learning_rate": 8)", "2:1 learning_rate", "write optimizer.params.lr"},
      {R"("optimizer": {"type": "Adam", "params": {"learning_rate": 8}})",
       "2:42 optimizer.params.learning_rate", "did you mean \"lr\"?"},
      {R"("optimizer": {"type": "Adam", "params": {"epsilon": 8}})", "2:42 optimizer.params.epsilon",
       "did you mean \"eps\"?"},
      {R"("optimizer": {"type": "Adam", "params": {"batch_size": 8}})", "2:42 optimizer.params.batch_size",
       "write train_batch_size at the top level"},
      {R"("max_grad_norm": 1)", "2:1 max_grad_norm", "write gradient_clipping"},
      {R"("enabled": true)", "2:1 enabled", "remove it (remarks can be written as // comments)"},
      {R"("my notes": "x")", "2:1 my notes", "remove it (remarks can be written as // comments)"},
      {R"("": 1)", "2:1 top level", "remove it (remarks can be written as // comments)"},
      {R"("zero_optimization.stage": 2)", "2:1 zero_optimization.stage",
       "write it inside the object of its section: dots do not nest"},
      {R"("aio.block_size": 2)", "2:1 aio.block_size",
       "write it inside the object of its section: dots do not nest"},
  };
  for (const Row& row : rows) {
    INFO(row.settings);
    const auto found = refusals(with(row.settings));
    REQUIRE(found.size() == 1);
    CHECK(found[0].place() == row.place);
    CHECK(found[0].remedy == row.remedy);
  }
}

TEST_CASE("each synonym leads to an existing key") {
  for (const char* name :
       {"batch_size", "micro_batch_size", "grad_accum_steps", "clip_grad", "learning_rate", "epsilon",
        "beta1", "wd", "warmup_steps", "total_steps", "zero_stage", "tag_validation_enabled", "tp_size"}) {
    INFO(name);
    CHECK_THAT(unknown_key("aio", name).text, Catch::StartsWith("write "));
  }
}

TEST_CASE("keys of a misspelled section are checked as keys of the section that is meant") {
  const auto found = refusals(with(R"("zero_optimisation": {"stage": 5,
    "offload_optimiser": {"device": "gpu"}, "stgae": 1}, "optimiser": {"params": {"lr": -1}})"));
  std::vector<std::string> places;
  for (const Refusal& refusal : found) places.push_back(refusal.place());
  CHECK(places == std::vector<std::string>{"2:1 zero_optimisation", "2:32 zero_optimisation.stage",
                                           "3:5 zero_optimisation.offload_optimiser",
                                           "3:37 zero_optimisation.offload_optimiser.device",
                                           "3:45 zero_optimisation.stgae", "3:58 optimiser",
                                           "3:71 optimizer.type", "3:89 optimiser.params.lr"});
  // A misspelled section is checked only if the correctly spelled one is missing. Otherwise the keys of both
  // would count as duplicates.
  CHECK(refusals(with(R"("fp61": {"enabled": 1}, "fp16": {"enabled": false})")).size() == 1);
}

TEST_CASE("a misspelled key is not also reported as missing") {
  const auto found = refusals(R"({"train_bacth_size": 8})");
  REQUIRE(found.size() == 1);
  CHECK(found[0].remedy == "did you mean \"train_batch_size\"?");
}

TEST_CASE("one note names all \"auto\" values of a file") {
  const std::string text =
      R"({"train_batch_size": "auto", "optimizer": {"type": "Adam", "params": {"lr": "auto",
    "eps": "auto"}}, "zero_optimization": {"reduce_bucket_size": "auto", "reduce_scatter": "auto",
    "overlap_comm": "auto"}})";
  const auto found = messages(text);
  REQUIRE(found.size() == 1);
  CHECK(found[0].severity == Severity::note);
  CHECK(found[0].mistake.path == "train_batch_size");
  CHECK(found[0].text ==
        "\"auto\": from the program, or else from other keys: train_batch_size, "
        "zero_optimization.overlap_comm; from the program when a run starts: optimizer.params.lr, "
        "optimizer.params.eps; from the model's hidden size when a run starts: "
        "zero_optimization.reduce_bucket_size; the default: zero_optimization.reduce_scatter = true");
  const LoadOptions options{.arguments = {{"train_batch_size", int64_t{6}},
                                          {"optimizer.params.lr", 0.5},
                                          {"optimizer.params.eps", 0.25}},
                            .hidden_size = 10};
  CHECK(told(parse_config(text, "conf", options)) ==
        std::vector<std::string>{
            "conf:1:22: note: train_batch_size: \"auto\": from the program's arguments: train_batch_size = "
            "6, optimizer.params.lr = 0.5, optimizer.params.eps = 0.25; from the model's hidden size: "
            "zero_optimization.reduce_bucket_size = 100; the default: zero_optimization.reduce_scatter = "
            "true; from the program, or else from other keys: zero_optimization.overlap_comm"});
}

TEST_CASE("of equally near keys, the one that begins like the misspelled key is suggested") {
  CHECK(nearest("bfp16", {"fp16", "bf16"}) == "bf16");
  CHECK(nearest("bfp16", {"bf16", "fp16"}) == "bf16");
  CHECK(nearest("dynamic_loss_scale", {"min_loss_scale"}).empty());
  CHECK(nearest("pipe_parallel_size", {"data_parallel_size"}).empty());
}

TEST_CASE("the edit distance counts letters and swapped neighbours, and ignores their case") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("stage", "Stage") == 0);
  CHECK(edit_distance("stage", "") == 5);
  CHECK(edit_distance("", "ab") == 2);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("stgae", "stage") == 1);
  CHECK(edit_distance("lr", "lrr") == 1);
}

TEST_CASE("every key that a report about memory names is in the table, and has an effect") {
  const std::regex key(R"([a-z_0-9]+(\.[a-z_0-9]+)+|(train|gradient)_[a-z_]+)");
  int named = 0;
  for (int remedy = 1; remedy <= static_cast<int>(MemoryRemedy::more_memory); ++remedy) {
    MemoryNow memory{.phase = MemoryPhase::counted};
    memory.remedies[static_cast<int>(MemoryUse::other)] = {static_cast<MemoryRemedy>(remedy)};
    const std::string text = memory_report(memory, true).back();
    INFO(text);
    REQUIRE(text.starts_with("what may help: "));
    for (std::sregex_iterator found(text.begin(), text.end(), key), end; found != end; ++found, ++named) {
      const KeyFact* fact = find_key(found->str());
      REQUIRE(fact);
      CHECK(fact->status == KeyStatus::supported);
    }
  }
  CHECK(named >= 18);
}
