#include "config/reference.h"

#include <string_view>
#include <vector>

#include "config/key_table.h"
#include "config/key_words.h"

namespace zerorun {
namespace {

constexpr std::string_view introduction = R"(# ds_config.json, key by key

ZeroRun reads the same `ds_config.json` as DeepSpeed. This page lists every key that the file can have, and says what
ZeroRun makes of it. A key that is not listed is an error, and the message names the key that was probably meant.

The page is made from the table in `config/keys/`. After a change there, write it anew with
`zerorun config reference > docs/ds_config.md`.

- `zerorun config check FILE` tells everything that there is to say about a file.
- `zerorun config show FILE` prints all settings, and where each value comes from.
- `schemas/ds_config.schema.json` is the same table as a JSON Schema. Editors complete and check keys with it: name it in
  the file as `"$schema"`, or in the settings of the editor.

## How to read the tables

**value** is what may stand there.

| words | meaning |
| --- | --- |
| integer | also written as `5e8` or `2.0`; in quotes (`"8"`) with a warning |
| size | an integer that may have a fraction, which is rounded down: `15099494.4` |
| number | an integer or a fraction, without quotes |
| true or false | in quotes (`"true"`) with a warning |
| text | in double quotes |
| texts | an array of texts, or one text alone |
| numbers, integers | an array of them |
| object | its keys are your own |
| or null | as if the key were left out |
| `one` or `another` | one of these words, spelled as it stands here unless "in any case" is said |

**default** holds where the key is left out. Where the column is empty there is none, or the meaning says what holds.

**auto** tells who gives the value of a key that says `"auto"`. Where the column is empty, `"auto"` is an error.

| words | meaning |
| --- | --- |
| program | the program, from its own arguments, when it calls `initialize` |
| model | the program, or else the model's hidden size *h*: `reduce_bucket_size` is *h* × *h*, `stage3_prefetch_bucket_size` 0.9 × *h* × *h*, `stage3_param_persistence_threshold` 10 × *h* |
| default | nobody has to: it stands for the default, or for what other keys give, unless the program gives it |

`zerorun config check` lists what is `"auto"` in one line. A run refuses what nobody has given.

**status** is what becomes of the key.

| words | meaning |
| --- | --- |
| supported | it does what the meaning says |
| supported; not offered: | the same; the words that follow are known, and a run refuses them |
| no effect | accepted, with a note, and changes nothing here, for the reason given |
| not offered | known, and ZeroRun has no such thing; training computes the same without it: a warning where it is asked for |
| not offered, a run refuses it | known; training would compute something else without it, so only the default is accepted |
| old name of, old form of | understood, with a warning |
| replaced | an error; write what is said instead |

What a run refuses is an error in `zerorun config check`, too. A default asks for nothing, whether it is written or not. What
stands in a section that is switched off is checked, and has no effect; a section whose switch is left out is off, which a
warning tells. The inside of a misspelled section is checked as that of the section that is meant.

Without `--world`, `check` refuses batch sizes that no number of ranks can have, and tells the number that three fixed sizes
belong to.

A key may be written under one of its names only. Some keys of `optimizer.params` and `scheduler.params` belong to certain
types: beside another type they are errors.

**Remarks.** Keys that begin with `_`, `#` or `//`, and `comment`, `comments` and `$schema`, are skipped in every section. The
file may also have comments (`//`, `#` and `/* */`) and trailing commas. It holds at most 16 MiB, a million names, values and
signs, and 100 levels of nesting.

## Where ZeroRun is stricter than DeepSpeed

DeepSpeed takes the following. ZeroRun refuses it, because it is a mistake that shows later, or not at all.

| in the file | why it is refused |
| --- | --- |
| an unknown key of the top level, of `optimizer`, `scheduler`, `aio` and other sections where DeepSpeed skips it | a setting that is misspelled or misplaced does nothing: `check --compat` takes those that are no typos |
| unquoted keys, missing commas | not JSON: other tools cannot read the file |
| `1`, `"yes"` or `"True"` for true; `true` for a stage or a count | says something else than it means |
| `"zero_optimization": true` | write the stage: `{"stage": 1}` |
| a number in quotes for a learning rate or a norm; a norm of `null` or below 0; `"auto"` that nobody fills in | DeepSpeed fails in the first step, or clips nothing |
| `"steps_per_print": 0`, `"reduce_bucket_size": 0` | DeepSpeed divides by the one; the other holds nothing |
| an optimizer or a scheduler without `type` | nothing is built, and the first step fails |
| `"device": "nvme"` without `nvme_path` | there is nowhere to write |
| `"hysteresis": 0` where the loss scale is found while training | the scale is never lowered again |
| a `min_loss_scale` above 2 to the power of `initial_scale_power` | the scale begins below its minimum, and an overflow raises it |
| an `initial_scale_power` above 127, a `loss_scale` above 2 to the power of 127 | fp32 cannot hold the scaled loss |
| a `grad_accum_dtype` of 16 bits that is not the dtype of training | gradients lose range or digits that they came with |
| `"gradient_allreduce_op": "sum"` beside `prescale_gradients`, or beside a `gradient_predivide_factor` other than 1 | the two belong to an average, and DeepSpeed passes over them |
| a `warmup_type` other than `log` and `linear` | DeepSpeed goes on with `log` |
| a schedule with a learning rate, a ratio or a decay below 0, with a momentum of 1 or more, with steps that are no whole number | no step could use it, or the schedule ends elsewhere than it says |

It is more lenient in two things that have one meaning only: sizes with a fraction, and integers in quotes. And what
DeepSpeed does not join works together here: `"gradient_allreduce_op": "sum"` at stage 3, `prescale_gradients` and
`gradient_predivide_factor` at every stage, SGD with ZeRO, and at stage 0 gradients of 16 bits that are added up in fp32.
)";

std::string code(std::string_view text) {
  return "`" + std::string(text) + "`";
}

std::string type_in_words(const KeyFact& row) {
  if (row.type == KeyType::choice) return words_or(offered_choices(row), "`");
  return (row.length > 0 ? std::to_string(row.length) + " " : "") + std::string(words_of(row.type).name);
}

/// Says which of the offered choices are matched case-insensitively.
std::string in_any_case(const KeyFact& row) {
  const std::string some = offered_in_any_case(row);
  if (some == offered_choices(row)) return ", in any case";
  return some.empty() ? "" : "; " + words_or(some, "`") + " in any case";
}

std::string value_in_words(const KeyFact& row) {
  std::string words = type_in_words(row);
  if (const std::string range = range_in_words(row.range); !range.empty()) {
    words += (row.is_list() ? ", each " : ", ") + range;
  }
  if (!row.any_case.empty()) words += in_any_case(row);
  if (row.accepts_true) words += ", or true for 1";
  if (row.per_group) words += ", or one a parameter group";
  if (row.nullable) words += ", or null";
  return words;
}

constexpr std::string_view automatic_words[] = {"", "program", "model", "default"};  // indexed by Automatic

/// Leaves out the reason if it repeats the section's reason.
std::string status_cell(const KeyFact& fact) {
  const std::string status = status_in_words(fact, "`");
  if (status.empty()) {
    const std::string missing = words_or(fact.choices_to_come, "`");
    return missing.empty() ? "supported" : "supported; not offered: " + missing;
  }
  const KeyFact* section = find_key(section_of(fact.path));
  const bool reported = section && section->status == fact.status && section->reason == fact.reason;
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

}  // namespace

std::string config_reference() {
  std::string page(introduction);
  page += "\n## Keys of the top level\n" + table_of("");
  for (const KeyFact* fact : facts_in("")) {
    if (fact->type == KeyType::section) page += chapter(*fact, "##");
  }
  return page;
}

}  // namespace zerorun
