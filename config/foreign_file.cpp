#include "config/foreign_file.h"

#include <array>
#include <cctype>

namespace zerorun::config {
namespace {

// Whether `text` has this key, as JSON ("key":) or YAML (key: at the start of a line).
bool text_has_key(std::string_view text, std::string_view key) {
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  for (size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    if (at > 0 && is_part(text[at - 1])) continue;
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
      "ds_config.json with "
      "what stands there"}},
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
