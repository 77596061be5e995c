// Tests the messages about 180 public configurations whose mistakes are known (data/real_configs/labels.tsv).
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/check.h"
#include "config/key_table.h"
#include "config/leftovers.h"
#include "tests/config/refusal.h"

namespace zerorun::test {
using namespace config;
namespace {

using Keys = std::vector<std::string>;

struct RealConfig {
  std::string file;
  std::string label;
  Keys unknown, deprecated, mistyped, remarks;

  std::string text() const {
    return read_config_file(std::string(ZERORUN_SOURCE_DIR) + "/tests/config/data/real_configs/" + file);
  }
};

Keys keys_in(const std::string& field) {
  return field == "-" ? Keys() : split(field, ',');
}

std::vector<RealConfig> real_configs() {
  std::vector<RealConfig> configs;
  for (const std::string& line : data_lines("real_configs/labels.tsv")) {
    const auto fields = split(line, '\t');
    REQUIRE(fields.size() == 6);
    configs.push_back({fields[0], fields[1], keys_in(fields[2]), keys_in(fields[3]), keys_in(fields[4]),
                       keys_in(fields[5])});
  }
  return configs;
}

std::string told(const CheckedConfig& checked) {
  std::string text;
  for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
    if (diagnostic.severity != Severity::note) text += checked.diagnostics.headline(diagnostic) + "\n";
  }
  return text;
}

const Diagnostic* find_named(const std::vector<Diagnostic>& messages, const std::string& path) {
  for (const Diagnostic& diagnostic : messages) {
    if (diagnostic.severity != Severity::note && diagnostic.mistake.path == path) return &diagnostic;
  }
  return nullptr;
}

bool is_deprecated(const std::string& path) {
  const KeyFact* fact = find_key(path);
  return fact && (fact->status == KeyStatus::old_name || fact->status == KeyStatus::replaced);
}

/// Returns the path that the message about a deprecated key names. If the name of the section is deprecated,
/// this is the section's path.
std::string place_of_deprecated(const std::string& key) {
  const std::string section(section_of(key));
  return is_deprecated(section) ? section : key;
}

bool is_leftover(const std::string& path) {
  return find_leftover(section_of(path), name_of(path), {}) != nullptr;
}

/// Whether the key is in an object whose keys are not checked.
bool is_unchecked(const std::string& path) {
  const KeyFact* section = find_key(section_of(path));
  return section && section->type == KeyType::object;
}

bool is_mistake(const std::string& unknown) {
  return !is_leftover(unknown) && !is_unchecked(unknown);
}

/// Returns true for messages about features that ZeroRun lacks, and about cases that the labels do not cover.
bool is_feature(const Diagnostic& diagnostic) {
  const std::string& found = diagnostic.mistake.found;
  if (diagnostic.severity == Severity::error) {
    return found.ends_with("which ZeroRun does not support") || found == "neither";
  }
  return diagnostic.mistake.path == "scheduler.params.warmup_num_steps" ||
         diagnostic.text.find("not supported: ") != std::string::npos ||
         diagnostic.text.find(" has no effect: ") != std::string::npos;
}

/// Returns "refused", "warned" or "passed". Messages for which is_feature() is true do not count.
std::string outcome_of(const CheckedConfig& checked) {
  std::string outcome = "passed";
  for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
    if (diagnostic.severity == Severity::note || is_feature(diagnostic)) continue;
    if (diagnostic.severity == Severity::error) return "refused";
    outcome = "warned";
  }
  return outcome;
}

// The number of configurations by label and outcome.
using Table = std::map<std::pair<std::string, std::string>, int>;

std::string in_words(const Table& table) {
  std::string text;
  for (const auto& [row, count] : table) {
    text += "  " + row.first + ", " + row.second + ": " + std::to_string(count) + "\n";
  }
  return text;
}

TEST_CASE("180 public configurations: the 130 clean ones pass, and all others get the expected outcome") {
  Table table;
  for (const RealConfig& config : real_configs()) {
    const CheckedConfig checked = check_config(config.text(), config.file);
    ++table[{config.label, outcome_of(checked)}];
    INFO(config.file << " is " << config.label << ", told:\n" << told(checked));
    if (config.label == "clean") CHECK(outcome_of(checked) == "passed");
    if (std::ranges::any_of(config.unknown, is_mistake)) CHECK(outcome_of(checked) == "refused");
  }
  const Table expected = {{{"clean", "passed"}, 130},      {{"unknown-key", "refused"}, 19},
                          {{"unknown-key", "warned"}, 10}, {{"unknown-key", "passed"}, 1},
                          {{"deprecated", "warned"}, 15},  {{"deprecated", "refused"}, 1},
                          {{"type-error", "warned"}, 2},   {{"type-error", "refused"}, 2}};
  INFO("outcomes by label:\n" << in_words(table));
  CHECK((table == expected));
}

TEST_CASE(
    "25 public configurations are refused, each for a mistake that changes training or a feature that is "
    "missing") {
  Keys refused;  // each file with its first error
  for (const RealConfig& config : real_configs()) {
    const auto messages = check_config(config.text(), config.file).diagnostics.messages();
    const auto error = std::ranges::find(messages, Severity::error, &Diagnostic::severity);
    if (error != messages.end()) refused.push_back(config.file + " " + error->mistake.path);
  }
  CHECK(refused == Keys{// keys that DeepSpeed refuses too
                        "003.json compile.enabled", "004.json compile.enabled", "005.json compile.enabled",
                        "006.json compile.enabled",
                        // a misspelled key, or one that belongs elsewhere
                        "014.json max_grad_norm", "031.json micro_batch_size_per_gpu", "035.json monitoring",
                        "050.json pipeline.pipeline_parallel_size",
                        // files of GPT-NeoX
                        "053.json pipe-parallel-size", "054.json pipe-parallel-size",
                        "055.json pipe-parallel-size", "056.json pipe-parallel-size",
                        "077.json offload_optimizer", "083.json pipeline.activation_checkpointing",
                        "165.json pipeline.micro_batch_size", "166.json scheduler.type",
                        "167.json train_batch_size", "181.json compile.disable", "183.json compile.disable",
                        "198.json zero_optimization.verbose", "199.json optimizer.params.max_grad_norm",
                        "202.json curriculum_learning", "208.json msamp", "222.json quantize_training",
                        "400.json fp16.min_loss_scale"});
}

TEST_CASE("features of public configurations that ZeroRun lacks are refused or warned of") {
  Keys refused;
  int offloading = 0;
  int told_of = 0;
  for (const RealConfig& config : real_configs()) {
    const auto messages = check_config(config.text(), config.file).diagnostics.messages();
    for (const Diagnostic& diagnostic : messages) {
      if (diagnostic.severity == Severity::note || !is_feature(diagnostic)) continue;
      if (diagnostic.severity == Severity::error)
        refused.push_back(config.file + " " + diagnostic.mistake.path);
    }
    const CheckedConfig checked = check_config(config.text(), config.file);
    if (checked.settings.get<std::string>("zero_optimization.offload_param.device").value_or("none") ==
        "none")
      continue;
    ++offloading;
    told_of += std::ranges::any_of(messages, [](const Diagnostic& diagnostic) {
      return diagnostic.text.find("not supported") != std::string::npos &&
             diagnostic.mistake.path.find("offload_param") != std::string::npos;
    });
  }
  CHECK(refused == Keys{"035.json sparse_attention", "167.json train_batch_size",
                        "199.json curriculum_learning", "202.json curriculum_learning",
                        "222.json quantize_training"});
  CHECK(offloading > 30);
  CHECK(told_of == 0);  // since ZeroRun offers offload_param
}

TEST_CASE("what public configurations ask for and ZeroRun does not do, by key") {
  std::map<std::string, int> files;
  int sections = 0;
  for (const RealConfig& config : real_configs()) {
    const CheckedConfig checked = check_config(config.text(), config.file);
    sections += checked.settings.find("activation_checkpointing") != nullptr;
    for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
      const std::string& text = diagnostic.text + diagnostic.mistake.found;
      if (diagnostic.severity != Severity::note && text.find("not support") != std::string::npos)
        ++files[diagnostic.mistake.path];
    }
  }
  CHECK(sections == 19);  // and 083.json, which has it inside of "pipeline"
  CHECK(files == std::map<std::string, int>{{"autotuning", 3},
                                            {"compile", 1},
                                            {"curriculum_learning", 2},
                                            {"data_efficiency", 1},
                                            {"eigenvalue", 1},
                                            {"quantize_training", 1},
                                            {"sparse_attention", 1}});
}

TEST_CASE("every unknown, deprecated or mistyped key of a public configuration is named at its path") {
  int named = 0;
  for (const RealConfig& config : real_configs()) {
    const CheckedConfig checked = check_config(config.text(), config.file);
    const auto messages = checked.diagnostics.messages();
    const auto check_named = [&](const std::string& key, const std::string& path, bool is_error) {
      INFO(config.file << ": " << key << ", told:\n" << told(checked));
      const Diagnostic* diagnostic = find_named(messages, path);
      REQUIRE(diagnostic);
      if (is_error) CHECK(diagnostic->severity == Severity::error);
      ++named;
    };
    for (const std::string& key : config.unknown) {
      if (!is_unchecked(key)) check_named(key, key, !is_leftover(key));
    }
    for (const std::string& key : config.deprecated) check_named(key, place_of_deprecated(key), false);
    for (const std::string& key : config.mistyped) check_named(key, key, false);
  }
  CHECK(named == 238);
}

TEST_CASE("only known mistakes of a public configuration are errors or warnings") {
  for (const RealConfig& config : real_configs()) {
    std::map<std::string, bool> known;
    for (const Keys* keys : {&config.unknown, &config.deprecated, &config.mistyped}) {
      for (const std::string& key : *keys) known[key] = true;
    }
    for (const Diagnostic& diagnostic : check_config(config.text(), config.file).diagnostics.messages()) {
      if (diagnostic.severity == Severity::note) continue;
      INFO(config.file << ":" << diagnostic.at().line << ": " << diagnostic.mistake.path << ": "
                       << diagnostic.text);
      // The labels do not cover the misspelled choice of this file.
      const bool is_choice = config.file == "166.json" && diagnostic.mistake.path == "scheduler.type";
      CHECK((known.contains(diagnostic.mistake.path) || is_choice || is_feature(diagnostic)));
    }
  }
}

TEST_CASE("no message is about a remark of a public configuration") {
  int remarks = 0;
  for (const RealConfig& config : real_configs()) {
    const auto messages = check_config(config.text(), config.file).diagnostics.messages();
    for (const std::string& key : config.remarks) {
      ++remarks;
      CHECK(config.text().find("\"" + std::string(name_of(key)) + "\"") != std::string::npos);
      for (const Diagnostic& diagnostic : messages) {
        INFO(config.file << ": " << key << ": " << diagnostic.text);
        CHECK(diagnostic.mistake.path != key);
        CHECK_FALSE(diagnostic.mistake.path.starts_with(key + "."));
      }
    }
  }
  CHECK(remarks == 6);
}

TEST_CASE("with compat, leftovers in public configurations are warnings and typos stay errors") {
  Keys still_refused;
  std::map<std::string, int> eased;  // number of configurations by label
  int typos = 0;
  for (const RealConfig& config : real_configs()) {
    const std::string text = config.text();
    const CheckedConfig strict = check_config(text, config.file);
    const CheckedConfig eased_check = check_config(text, config.file, {.compat = true});
    INFO(config.file << " with compat:\n" << told(eased_check));
    const bool is_refused = outcome_of(strict) == "refused";
    if (!is_refused) CHECK(outcome_of(eased_check) == outcome_of(strict));
    // `compat` lowers the severity of some messages, and changes nothing else in them.
    const auto before = strict.diagnostics.messages();
    const auto after = eased_check.diagnostics.messages();
    REQUIRE(before.size() == after.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(before[i].text == after[i].text);
      CHECK(before[i].mistake.path == after[i].mistake.path);
      const bool is_typo = before[i].text.find("did you mean") != std::string::npos;
      if (!is_typo) continue;
      ++typos;
      CHECK(after[i].severity == Severity::error);
    }
    if (!is_refused) continue;
    if (outcome_of(eased_check) == "refused") {
      still_refused.push_back(config.file);
    } else {
      ++eased[config.label];
    }
  }
  CHECK((eased == std::map<std::string, int>{{"unknown-key", 16}, {"deprecated", 1}}));
  CHECK(typos == 2);
  // 031 has a typo; 053, 056, 166 and 400 have values of the wrong type.
  CHECK(still_refused == Keys{"031.json", "053.json", "056.json", "166.json", "400.json"});
}

}  // namespace
}  // namespace zerorun::test
