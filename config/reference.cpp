#include "config/reference.h"

#include <string_view>
#include <vector>

#include "config/key_table.h"
#include "config/key_words.h"
#include "config/leftovers.h"

namespace zerorun::config {
namespace {

constexpr std::string_view introduction = R"(# ds_config.json, key by key

ZeroRun reads the same `ds_config.json` as DeepSpeed. This page lists every key that ZeroRun reads and says what it does with
it. Any other key is an error, and the message suggests the key that was probably meant. Two kinds of keys are an exception:
the keys inside an *object*, such as `autotuning`, are not checked, and a few [leftovers](#leftovers) only get a warning.

The page is generated from the table in `config/keys/`. After a change there, regenerate it with
`zerorun config reference > docs/ds_config.md`.

- `zerorun config check FILE` reports all errors, warnings and notes about a file.
- `zerorun config show FILE` prints all settings and the origin of each value.
- `schemas/ds_config.schema.json` is the same table as a JSON Schema, for editors: they complete keys with it, and check the
  type, the range and the words of each value. Name it in the file as `"$schema"`, or in the settings of the editor. It does not
  know the rules between keys, and it objects to numbers and booleans in quotes and to 0 and 1 for booleans: `check` has the last word.

## How to read the tables

**value**: the values that the key accepts.

| words | meaning |
| --- | --- |
| integer | may also be written as `5e8` or `2.0`; in quotes (`"8"`) it gets a warning |
| size | an integer; a fraction such as `15099494.4` is rounded down |
| number | an integer or a fraction, without quotes |
| true or false | in quotes (`"true"`), or as 1 or 0, it gets a warning |
| text | in double quotes |
| texts | an array of texts, or a single text |
| numbers | an array of numbers |
| object | an object whose keys are not checked; of a feature that is not supported, only the switch is read |
| or null | null has the same effect as leaving the key out |
| `one` or `another` | one of these words, spelled exactly like this unless "in any case" is added |

**default**: the value if the key is left out. An empty cell means that there is no default, or that the meaning states it.

**auto**: where the value comes from if the key is set to `"auto"`. An empty cell means that `"auto"` is an error.

| words | meaning |
| --- | --- |
| program | the arguments that the program passes to `initialize` |
| model | the program's arguments, or else the model's hidden size *h*: `reduce_bucket_size` is *h* × *h*, `stage3_prefetch_bucket_size` 0.9 × *h* × *h*, `stage3_param_persistence_threshold` 10 × *h* |
| default | the program's arguments, or else the default or the value that follows from other keys |

`zerorun config check` lists all keys that are `"auto"` in one line. A run refuses an `"auto"` that gets no value.

**status**: what ZeroRun does with the key.

| words | meaning |
| --- | --- |
| supported | the key does what the meaning says |
| supported; not supported: | the key is supported, but a run refuses the words that follow |
| no effect | accepted with a note; it has no effect, for the given reason |
| not supported | accepted, with a warning if the file asks for the feature; training gives the same results without it |
| not supported, refused by a run | training would give different results without it, so only the default is accepted, and an object only if its feature is off |
| old name of, old form of | accepted with a warning |
| replaced | an error; the text says what to write instead |

Everything that a run refuses is also an error in `zerorun config check`. A default value never asks for a feature, even if
the file sets it explicitly. Keys in a section that is switched off are checked, but have no effect. A section whose switch
is left out is off, which gives a warning. The keys of a misspelled section are checked like those of the section that was
probably meant.

Without `--world`, `check` refuses batch sizes that no world size can have, and prints the world size that follows from three
given batch sizes.

A file may use only one of a key's names. Some keys of `optimizer.params` and `scheduler.params` belong to certain types: they
are errors with any other type.

**Remarks.** Keys that begin with `_`, `#` or `//`, and `comment`, `comments` and `$schema`, are ignored in every section. The
file may have comments (`//`, `#` and `/* */`) and trailing commas. It may have at most 16 MiB, a million tokens (names,
values and punctuation), and 100 levels of nesting.

## Where ZeroRun is stricter than DeepSpeed

DeepSpeed accepts the following. ZeroRun refuses it, because it is a mistake that would show up later, or never.

| in the file | why it is refused |
| --- | --- |
| an unknown key at the top level, in `optimizer`, `scheduler`, `aio` and other sections where DeepSpeed ignores it | a misspelled or misplaced setting has no effect; `check --compat` accepts unknown keys that are not typos |
| unquoted keys, missing commas | not JSON: other tools cannot read the file |
| `1`, `"yes"` or `"True"` for true; `true` for a stage or a count | the meaning is unclear |
| `"zero_optimization": true` | write the stage: `{"stage": 1}` |
| a number in quotes for a learning rate or a norm; a norm of `null` or below 0; `"auto"` without a value | DeepSpeed fails in the first step, or does not clip |
| `"steps_per_print": 0`, `"reduce_bucket_size": 0` | DeepSpeed divides by the first; a bucket of the second size holds nothing |
| an optimizer or a scheduler without `type` | DeepSpeed creates none, and the first step fails |
| `"device": "nvme"` without `nvme_path` | there is no folder to write to |
| `"hysteresis": 0` with dynamic loss scaling | the scale would never be lowered |
| a `min_loss_scale` above 2 to the power of `initial_scale_power` | the scale would start below its minimum, and an overflow would raise it |
| an `initial_scale_power` above 127, a `loss_scale` above 2 to the power of 127 | fp32 cannot hold the scaled loss |
| a `grad_accum_dtype` of 16 bits that differs from the dtype of training | gradients would lose range or precision |
| `"gradient_allreduce_op": "sum"` with `prescale_gradients`, or with a `gradient_predivide_factor` other than 1 | the two keys are parts of an average, and DeepSpeed ignores them with `"sum"` |
| a `warmup_type` other than `log` and `linear` | DeepSpeed uses `log` instead |
| a schedule with a negative learning rate, ratio or decay, with a momentum of 1 or more, or with a number of steps that is not an integer | no step could use it, or the schedule would end at another step than the file says |

ZeroRun is more lenient in two cases that have only one possible meaning: sizes with a fraction, and integers in quotes. It also
supports combinations that DeepSpeed does not: `"gradient_allreduce_op": "sum"` at stage 3, `prescale_gradients` and
`gradient_predivide_factor` at every stage, SGD with ZeRO, and, at stage 0, 16-bit gradients that are accumulated in fp32.
)";

std::string code(std::string_view text) {
  return "`" + std::string(text) + "`";
}

std::string type_in_words(const KeyFact& row) {
  if (row.type == KeyType::choice) return words_or(supported_choices(row), "`");
  return (row.length > 0 ? std::to_string(row.length) + " " : "") + std::string(words_of(row.type).name);
}

/// Says which of the supported choices are matched case-insensitively.
std::string either_case(const KeyFact& row) {
  const std::string some = supported_in_any_case(row);
  if (some == supported_choices(row)) return ", in any case";
  return some.empty() ? "" : "; " + words_or(some, "`") + " in any case";
}

std::string value_in_words(const KeyFact& row) {
  std::string words = type_in_words(row);
  if (const std::string range = range_in_words(row.range); !range.empty()) {
    words += (row.type == KeyType::number_list ? ", each " : ", ") + range;
  }
  if (!row.any_case.empty()) words += either_case(row);
  if (row.accepts_true) words += ", or true for 1";
  if (row.per_group) words += ", or one per parameter group";
  if (row.nullable) words += ", or null";
  return words;
}

constexpr std::string_view automatic_words[] = {"", "program", "model", "default"};  // indexed by Automatic

/// Leaves out the reason if it repeats the section's reason.
std::string status_cell(const KeyFact& fact) {
  const std::string status = status_in_words(fact, "`");
  if (status.empty()) {
    const std::string missing = words_or(fact.unsupported_choices, "`");
    return missing.empty() ? "supported" : "supported; not supported: " + missing;
  }
  const KeyFact* section = find_key(section_of(fact.path));
  const bool reported = section && section->status == fact.status && reason_of(*section) == reason_of(fact);
  return reported ? status.substr(0, status.find(':')) : status;
}

std::string meaning_cell(const KeyFact& fact) {
  std::string meaning = sentence(fact.meaning);
  if (!fact.switch_key.empty()) meaning += " It has no effect unless " + switch_in_words(fact, "`") + ".";
  if (!fact.types.empty()) meaning += " Only for " + words_or(fact.types, "") + ".";
  return meaning;
}

std::string key_cell(const KeyFact& fact) {
  const std::string name = code(name_of(fact.path));
  return fact.other_name.empty() ? name : name + ", also " + code(fact.other_name);
}

/// Escapes "|", which would end the table cell.
std::string escaped(const std::string& text) {
  std::string cell;
  for (const char c : text) cell += c == '|' ? std::string("\\|") : std::string(1, c);
  return cell;
}

std::string table_row(const KeyFact& fact) {
  const std::string fallback =
      fact.fallback.empty() || fact.status == KeyStatus::replaced ? "" : code(fact.fallback);
  std::string line = "|";
  for (const std::string& cell : {key_cell(fact), value_in_words(fact), fallback,
                                  std::string(automatic_words[static_cast<std::size_t>(fact.automatic)]),
                                  status_cell(fact), meaning_cell(fact)}) {
    line += cell.empty() ? " |" : " " + escaped(cell) + " |";
  }
  return line + "\n";
}

/// Returns the table of the keys directly in a section.
std::string table_of(std::string_view section) {
  std::string rows;
  for (const KeyFact* fact : facts_in(section)) {
    if (fact->type != KeyType::section) rows += table_row(*fact);
  }
  if (rows.empty()) return {};
  return "\n| key | value | default | auto | status | meaning |\n| --- | --- | --- | --- | --- | --- |\n" +
         rows;
}

std::string chapter(const KeyFact& fact, std::string_view heading) {
  std::string text =
      "\n" + std::string(heading) + " " + code(fact.path) + "\n\n" + description_of(fact, "`") + "\n";
  text += table_of(fact.path);
  for (const KeyFact* inner : facts_in(fact.path)) {
    if (inner->type == KeyType::section) text += chapter(*inner, "###");
  }
  return text;
}

constexpr std::string_view about_leftovers = R"(
## Leftovers

These keys are accepted with a warning, because they have no effect. They are settings of other programs, or of DeepSpeed
versions in which they did nothing.

| key | why it has no effect |
| --- | --- |
)";

std::string leftovers_chapter() {
  std::string text(about_leftovers);
  for (const Leftover& leftover : leftovers()) {
    const std::string where = leftover.section.empty() ? "" : " in " + code(leftover.section);
    text += "| " + words_or(leftover.names, "`") + where + (leftover.only_false ? ": `false`" : "") + " | " +
            std::string(leftover.reason) + " |\n";
  }
  return text;
}

}  // namespace

std::string config_reference() {
  std::string page(introduction);
  page += leftovers_chapter();
  page += "\n## Keys of the top level\n" + table_of("");
  for (const KeyFact* fact : facts_in("")) {
    if (fact->type == KeyType::section) page += chapter(*fact, "##");
  }
  return page;
}

}  // namespace zerorun::config
