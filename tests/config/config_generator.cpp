#include "config_generator.h"

#include <cctype>
#include <random>
#include <sstream>

#include "config/key_table.h"
#include "config_draft.h"

namespace zerorun::test {
using namespace config;
namespace {

constexpr int combinations = 4000;
constexpr unsigned seed = 20240607;

/// Splits `path` into keys. Replaces "*", which stands for a name that users choose, by "mine".
Draft::Path keys_on(std::string_view path) {
  Draft::Path keys;
  std::string key;
  std::istringstream parts{std::string(path)};
  while (std::getline(parts, key, '.')) keys.push_back(key == "*" ? "mine" : key);
  return keys;
}

std::string joined(const Draft::Path& path) {
  std::string result;
  for (const std::string& name : path) result = join_path(result, name);
  return result;
}

Draft::Path renamed(Draft::Path path, std::string name) {
  path.back() = std::move(name);
  return path;
}

Draft::Path within(Draft::Path section, const std::string& name) {
  section.push_back(name);
  return section;
}

bool is_under(std::string_view path, std::string_view section) {
  return path.starts_with(section) && path.size() > section.size() && path[section.size()] == '.';
}

/// Returns a configuration that sets only a batch size, which every configuration must have.
Draft with_a_batch() {
  return Draft().put({"train_micro_batch_size_per_gpu"}, "1");
}

/// Returns a configuration to which the key can be added. For a key of the optimizer or the scheduler
/// section, the configuration sets that section's type.
Draft surroundings(const KeyFact& fact, std::string_view type = {}) {
  Draft draft = with_a_batch();
  for (const char* section : {"optimizer", "scheduler"}) {
    if (!is_under(fact.path, section) && fact.path != section) continue;
    std::string named(type);
    if (named.empty()) named = fact.types.substr(0, fact.types.find(' '));
    if (named.empty()) named = section == std::string_view("optimizer") ? "AdamW" : "WarmupLR";
    draft.put({section, "type"}, quoted_literal(named));
    const bool needs_total = named == "WarmupDecayLR" || named == "WarmupCosineLR";
    if (needs_total) draft.put({section, "params", "total_num_steps"}, "100");
    if (named != "OneCycle") continue;
    draft.put({section, "params", "cycle_min_lr"}, "0.1").put({section, "params", "cycle_max_lr"}, "0.2");
  }
  return draft;
}

class Generator {
 public:
  explicit Generator(const std::function<void(const std::string&)>& take) : take_(take) {}

  void run() {
    for (const char* text : {"{}", "[]", "null", "1", "\"text\"", "{\"\": 1}", "{\"*\": 1}"}) take_(text);
    for (const KeyFact* fact : key_facts()) {
      each_value(*fact);
      names(*fact);
      misspellings(*fact);
      types(*fact);
      if (fact->type == KeyType::section) remarks(*fact);
    }
    remarks({});
    own_keys();
    batch_rules();
    optimizer_rules();
    precision_rules();
    refusals();
    averaging_rules();
    offload_rules();
    scheduler_rules();
    for (int i = 0; i < combinations; ++i) combination();
  }

 private:
  void take(const Draft& draft) { take_(draft.text()); }

  // Uses no distribution class of the standard library, since its results differ between libraries.
  template <typename List>
  auto any_of(const List& list) {
    return list[random_() % list.size()];
  }

  void each_value(const KeyFact& fact) {
    const Draft::Path path = keys_on(fact.path);
    for (const std::string& literal : literals_for(fact)) take(surroundings(fact).put(path, literal));
    if (fact.other_name.empty()) return;
    for (const std::string& literal : common_literals()) {
      take(surroundings(fact).put(renamed(path, std::string(fact.other_name)), literal));
    }
  }

  /// Makes configurations that set one key twice: by its name and its other name, by an old name and a
  /// present name, and by two old names.
  void names(const KeyFact& fact) {
    const Draft::Path path = keys_on(fact.path);
    const std::string literal = likely_literals(fact).front();
    if (!fact.other_name.empty()) {
      take(with_a_batch().put(path, literal).put(renamed(path, std::string(fact.other_name)), literal));
    }
    if (fact.status != KeyStatus::old_name) return;
    const KeyFact& present = *find_key(fact.target);
    const Draft::Path target = keys_on(present.path);
    for (const std::string& value : likely_literals(present)) {
      take(with_a_batch().put(path, "true").put(target, value));
      take(with_a_batch().put(target, value).put(path, "true"));
    }
    for (const KeyFact* other : key_facts()) {
      if (other != &fact && other->target == fact.target) {
        take(with_a_batch().put(path, "true").put(keys_on(other->path), "true"));
      }
    }
    if (present.other_name.empty()) return;
    take(with_a_batch().put(path, "true").put(renamed(target, std::string(present.other_name)), "true"));
  }

  void misspellings(const KeyFact& fact) {
    const Draft::Path path = keys_on(fact.path);
    const std::string name = path.back();
    const std::string literal = likely_literals(fact).front();
    for (const std::string& other : {name + "s", name.substr(1), with_case(name, std::toupper), name + ".",
                                     "x." + name, " " + name, "-" + name}) {
      take(surroundings(fact).put(renamed(path, other), literal));
    }
    take(surroundings(fact).put({name}, literal));                       // at the top level
    take(surroundings(fact).put({"zero_optimization", name}, literal));  // in another section
    take(surroundings(fact).put({std::string(fact.path)}, literal));     // a path as a key
    take(surroundings(fact).put(within(path, "stage"), "1"));            // a value as a section
    take(surroundings(fact).put(within(path, name), literal));
  }

  /// Makes configurations with this parameter and each type of its section, an unknown type, and no type.
  void types(const KeyFact& fact) {
    const std::string_view params = section_of(fact.path);
    if (params != "optimizer.params" && params != "scheduler.params") return;
    const std::string section(section_of(params));
    const std::string literal = likely_literals(fact).front();
    const auto beside = [&](std::string_view type) {
      take(surroundings(fact, type).put(keys_on(fact.path), literal));
    };
    for_each_word(find_key(section + ".type")->choices, [&](std::string_view type) {
      beside(type);
      beside(with_case(type, std::tolower));
    });
    beside("Adamm");
    take(with_a_batch().put(keys_on(fact.path), literal));
    for (const char* type : {"null", "1", "[\"Adam\"]"}) {
      take(with_a_batch().put({section, "type"}, type).put(keys_on(fact.path), literal));
    }
  }

  /// Makes configurations with a remark in the section, and with keys that look like remarks.
  void remarks(const KeyFact& section) {
    for (const char* name : {"//", "//lr", "#", "#lr", "_", "_comment", "comment", "comments", "$schema",
                             "$comment", "$id", "Comment", "commented", "/", "a_comment"}) {
      for (const char* literal : {"null", "\"a remark\"", "{\"lr\": 1}"}) {
        Draft::Path path = section.path.empty() ? Draft::Path() : keys_on(section.path);
        take(surroundings(section).put(within(std::move(path), name), literal));
      }
    }
  }

  /// Tries names in the sections whose keys users choose. Such a name may be any text, except "", "*" and
  /// texts with a dot, which could be confused with paths. The names of remarks
  /// (is_remark()) may have a dot.
  void own_keys() {
    for (const KeyFact* fact : key_facts()) {
      if (name_of(fact->path) != "*") continue;
      for (const char* name :
           {"mine", "two words", "", "*", "**", "a*", "*a", "a.b", ".", "*.", "_mine", "#.", "//a.b"}) {
        for (const std::string& literal : common_literals()) {
          take(with_a_batch().put(renamed(keys_on(fact->path), name), literal));
        }
      }
    }
  }

  /// The valid sizes fit each other (8 = 2 * 4). A schema cannot check that they do, so it would accept
  /// configurations that parse_config() refuses.
  void batch_rules() {
    for (const char* train : {"", "null", "8", "\"auto\"", "0", "1.5"}) {
      for (const char* micro : {"", "null", "2", "\"2\"", "\"auto\"", "-1"}) {
        for (const char* steps : {"", "null", "4", "\"auto\"", "true"}) {
          Draft draft;
          put_unless_empty(draft, {"train_batch_size"}, train);
          put_unless_empty(draft, {"train_micro_batch_size_per_gpu"}, micro);
          put_unless_empty(draft, {"gradient_accumulation_steps"}, steps);
          take(draft);
        }
      }
    }
  }

  void optimizer_rules() {
    const Literals momenta = {"", "0", "0.0", "0.9", "-1"};
    const Literals flags = {"", "true", "false", "\"true\"", "\"false\"", "null"};
    for (const char* type :
         {"\"SGD\"", "\"sgd\"", "\"MuSGD\"", "\"Muon\"", "null", "\"Adam\"", "\"adamw\"", "\"Lamb\""}) {
      for (const std::string& flag : flags) {
        for (const std::string& momentum : momenta) {
          for (const char* dampening : {"", "0", "0.1", "-0.1"}) {
            Draft draft = params_of("optimizer", type, "nesterov", flag);
            put_unless_empty(draft, {"optimizer", "params", "momentum"}, momentum);
            put_unless_empty(draft, {"optimizer", "params", "dampening"}, dampening);
            take(draft);
          }
        }
        for (const std::string& correction : flags) {
          Draft draft = params_of("optimizer", type, "torch_adam", flag);
          put_unless_empty(draft, {"optimizer", "params", "bias_correction"}, correction);
          take(draft);
        }
      }
    }
  }

  void precision_rules() {
    const Literals flags = {"", "true", "false", "\"true\"", "\"auto\"", "null"};
    for (const std::string& fp16 : flags) {
      for (const std::string& other : flags) {
        for (const char* name : {"bf16", "bfloat16"}) {
          Draft draft = with_a_batch();
          put_unless_empty(draft, {"fp16", "enabled"}, fp16);
          put_unless_empty(draft, {name, "enabled"}, other);
          take(draft);
          for (const char* dtype : {"\"fp32\"", "\"fp16\"", "\"bf16\"", "null"}) {
            take(Draft(draft).put({"data_types", "param_dtype"}, dtype));
            take(Draft(draft).put({"data_types", "grad_accum_dtype"}, dtype));
            take(Draft(draft).put({"data_types", "buffer_dtype"}, dtype));
            take(Draft(draft).put({"communication_data_type"}, dtype));
          }
        }
      }
    }
  }

  /// Makes configurations with keys that a run refuses, in sections that are on, off, or "auto".
  void refusals() {
    for (const KeyFact* fact : key_facts()) {
      if (!fact->changes_result) continue;
      const Draft::Path path = keys_on(fact->path);
      for (const char* state : {"true", "\"true\"", "false", "\"auto\""}) {
        for (const char* literal : {"true", "false", "\"false\"", "1", "\"1\"", "\"auto\"", "null", "{}",
                                    "{\"enabled\": false}", "{\"a\": {\"enabled\": true}}"}) {
          Draft draft = surroundings(*fact);
          for (Draft::Path section = path; section.size() > 1;) {
            section.pop_back();
            const bool has_switch = find_key(join_path(joined(section), "enabled")) != nullptr;
            if (has_switch) draft.put(within(section, "enabled"), state);
          }
          take(draft.put(path, literal));
        }
      }
    }
  }

  void averaging_rules() {
    for (const char* op : {"", "\"mean\"", "\"sum\"", "\"SUM\"", "\"Mean\"", "\"summ\"", "\"max\"", "null"}) {
      for (const char* prescale : {"", "true", "false", "\"true\"", "\"false\"", "\"auto\"", "null"}) {
        for (const char* factor : {"", "1", "1.0", "2", "0.5", "0", "null"}) {
          Draft draft = with_a_batch();
          put_unless_empty(draft, {"gradient_allreduce_op"}, op);
          put_unless_empty(draft, {"prescale_gradients"}, prescale);
          put_unless_empty(draft, {"gradient_predivide_factor"}, factor);
          take(draft);
        }
      }
    }
  }

  void offload_rules() {
    for (const char* section : {"offload_param", "offload_optimizer"}) {
      for (const std::string& literal : common_literals()) {
        for (const char* device : {"", "null", "\"none\"", "\"cpu\"", "\"nvme\"", "\"NVMe\""}) {
          Draft draft = with_a_batch();
          draft.put({"zero_optimization", section, "nvme_path"}, literal);
          put_unless_empty(draft, {"zero_optimization", section, "device"}, device);
          take(draft);
        }
      }
      take(with_a_batch().put({"zero_optimization", section, "device"}, "\"nvme\""));
    }
  }

  void scheduler_rules() {
    for (const char* type : {"", "\"WarmupLR\"", "\"WarmupDecayLR\"", "\"warmupdecaylr\"",
                             "\"WarmupCosineLR\"", "\"OneCycle\""}) {
      for (const char* total : {"", "100", "\"100\"", "\"auto\"", "null", "0"}) {
        take(params_of("scheduler", type, "total_num_steps", total));
        take(params_of("scheduler", type, "total_num_steps", total)
                 .put({"scheduler", "params", "warmup_num_steps"}, "10"));
        take(params_of("scheduler", type, "total_num_steps", total).put({"scheduler", "params"}, "{}"));
        take(params_of("scheduler", type, "total_num_steps", total).put({"scheduler", "params"}, "null"));
      }
    }
    for (const char* type : {"", "\"OneCycle\"", "\"WarmupLR\""}) {
      for (const char* bound : {"", "1e-3", "[1e-3, 2e-3]", "[]", "null", "\"auto\"", "-1"}) {
        take(params_of("scheduler", type, "cycle_min_lr", bound));
        take(params_of("scheduler", type, "cycle_max_lr", bound));
        take(params_of("scheduler", type, "cycle_max_lr", bound)
                 .put({"scheduler", "params", "cycle_min_lr"}, "1e-4"));
      }
    }
  }

  static void put_unless_empty(Draft& draft, const Draft::Path& path, const std::string& literal) {
    if (!literal.empty()) draft.put(path, literal);
  }

  static Draft params_of(const std::string& section, const std::string& type, const std::string& key,
                         const std::string& literal) {
    Draft draft = with_a_batch();
    put_unless_empty(draft, {section, "type"}, type);
    put_unless_empty(draft, {section, "params", key}, literal);
    return draft;
  }

  /// Makes one configuration of several random keys. Most of them have a value of the right kind.
  void combination() {
    Draft draft = with_a_batch();
    const std::string optimizer(any_of(
        std::vector<std::string_view>{"Adam", "AdamW", "SGD", "adam", "Lamb", "Adagrad", "RMSprop", "lion"}));
    const std::string scheduler(
        any_of(std::vector<std::string_view>{"WarmupLR", "WarmupDecayLR", "OneCycle"}));
    for (std::size_t keys = 1 + random_() % 12; keys > 0; --keys) {
      const KeyFact& fact = *any_of(key_facts());
      const bool is_left_out = fact.status == KeyStatus::replaced || fact.type == KeyType::section;
      if (is_left_out && random_() % 20 != 0) continue;
      // A schema cannot compare these two keys with other keys.
      if (fact.path == "fp16.min_loss_scale" || fact.path == "train_batch_size") continue;
      if (is_under(fact.path, "optimizer")) draft.put({"optimizer", "type"}, quoted_literal(optimizer));
      if (is_under(fact.path, "scheduler")) draft.put({"scheduler", "type"}, quoted_literal(scheduler));
      if (is_under(fact.path, "optimizer.params") && !takes(fact, optimizer)) continue;
      if (is_under(fact.path, "scheduler.params") && !takes(fact, scheduler)) continue;
      const bool other_name = !fact.other_name.empty() && random_() % 2 == 0;
      const Draft::Path path = keys_on(fact.path);
      draft.put(other_name ? renamed(path, std::string(fact.other_name)) : path,
                any_of(random_() % 16 == 0 ? common_literals() : likely_literals(fact)));
    }
    take(draft);
  }

  /// Returns true if the type accepts the key. Also returns true, at random, for one in 16 of the other keys.
  bool takes(const KeyFact& fact, const std::string& type) {
    return fact.types.empty() || has_word(fact.types, type) || random_() % 16 == 0;
  }

  const std::function<void(const std::string&)>& take_;
  std::mt19937 random_{seed};
};

}  // namespace

void generate_configs(const std::function<void(const std::string&)>& take) {
  Generator(take).run();
  // Rules between two keys need configurations of their own, since combination() rarely draws both keys.
  for (const std::string size : {"0", "1", "\"0\"", "\"auto\""}) {
    for (const std::string scale : {"0", "0.0", "128", "1e-07", "\"auto\""}) {
      for (const std::string enabled : {"true", "\"true\"", "false", "\"auto\""}) {
        for (const std::string key : {"loss_scale_window", "hysteresis", "min_loss_scale"}) {
          take(R"({"train_batch_size": 1, "fp16": {"enabled": )" + enabled + R"(, "loss_scale": )" + scale +
               ", \"" + key + "\": " + size + "}}");
        }
      }
    }
  }
  for (const std::string stage : {"0", "2", "3", "3.0", "\"2\"", "\"3\""}) {
    for (const std::string ratio : {"0", "0.5", "1", "1.0", "\"auto\""}) {
      take(R"({"train_batch_size": 1, "zero_optimization": {"stage": )" + stage +
           R"(, "offload_optimizer": {"ratio": )" + ratio + "}}}");
    }
  }
  take(R"({"train_batch_size": 1, "zero_optimization": {"offload_optimizer": {"ratio": 0.5}}})");
}

}  // namespace zerorun::test
