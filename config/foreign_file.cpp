#include "config/foreign_file.h"

#include <array>

namespace zerorun::config {
namespace {

// Whether `text` has this key at its top level, as JSON ("key": within one brace) or YAML (key: at the start
// of a line).
bool text_has_key(std::string_view text, std::string_view key) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char before = at > 0 ? text[at - 1] : '\n';
    if (text[at] == '"' && before != '\\') quoted = !quoted;
    if (!quoted) depth += std::string_view("{[").find(text[at]) != std::string_view::npos;
    if (!quoted) depth -= std::string_view("}]").find(text[at]) != std::string_view::npos;
    const bool at_top = depth == 0 ? before == '\n' : depth == 1 && before == '"';
    if (!at_top || !text.substr(at).starts_with(key)) continue;
    size_t end = at + key.size();
    if (end < text.size() && text[end] == '"') ++end;
    while (end < text.size() && text[end] == ' ') ++end;
    if (end < text.size() && text[end] == ':') return true;
  }
  return false;
}

struct Known {
  std::array<std::string_view, 2> keys;  // it has both
  ForeignFile file;
};

constexpr ForeignFile kTrainingArguments = {"TrainingArguments of transformers",
                                            "give the file that their key deepspeed names"};
constexpr Known kKnown[] = {
    {{"compute_environment", "distributed_type"},
     {"a file of `accelerate config`",
      "give the file that its deepspeed_config_file names (under deepspeed_config), or write a "
      "ds_config.json with what stands there"}},
    {{"base_model", "micro_batch_size"}, {"a file of axolotl", "give the file that its key deepspeed names"}},
    {{"output_dir", "per_device_train_batch_size"}, kTrainingArguments},
    {{"output_dir", "num_train_epochs"}, kTrainingArguments},
};

}  // namespace

const ForeignFile* recognise_foreign_file(std::string_view text) {
  for (const Known& known : kKnown) {
    if (text_has_key(text, known.keys[0]) && text_has_key(text, known.keys[1])) return &known.file;
  }
  return nullptr;
}

}  // namespace zerorun::config
