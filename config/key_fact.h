// The facts about one configuration key, and a notation for table rows of such facts. Constant data; any
// thread.
//
// The tables in config/keys/ hold a row for every key that a ds_config.json can have. The reader, the JSON
// Schema (config/schema.h), the reference page (config/reference.h) and the suggestions are all made from
// these rows.
//
// A row begins with a function named after the key's type; chained calls add the other facts. A path that
// begins with a dot belongs to the section of the last section row:
//
//   section("compile", "compilation of the training step").not_offered("nothing is compiled"),
//   boolean(".debug_log", "false", "log what is compiled"),
//   integer(".free_activation_threshold", "10485760", "bytes from which they are").least(0),
//
// A key of a section that has no effect or is not offered has the section's status and reason, unless its row
// gives others.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace zerorun {

enum class KeyType {
  section,  // an object with keys of its own
  integer,  // also 5e8 and 2.0, and "8"
  size,     // a number of elements; may be written with a fraction, which is rounded down: 15099494.4
  number,   // an integer or a fraction
  boolean,  // also "true" and "false"
  text,
  choice,       // one of the texts in `choices`
  number_list,  // `length` numbers, or any number of them if that is 0
  integer_list,
  text_list,  // also one text alone
  object,     // an object whose keys are the user's own
  anything
};

/// Who gives the value of a key that says "auto".
enum class Automatic {
  nobody,    // "auto" is refused
  program,   // the program's own arguments
  model,     // computed from the model's hidden size
  fallback,  // "auto" stands for the default, unless the program gives a value
};

enum class KeyStatus {
  supported,
  no_effect,    // accepted; `reason` says why it changes nothing here
  not_offered,  // known in DeepSpeed; `reason` says what happens instead
  old_name,     // another name of `target`, still understood
  replaced      // refused; `reason` says what to write
};

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is excluded
  bool below_max = false;  // max itself is excluded
};

struct KeyFact {
  std::string_view path;  // in a table from config/keys/: may begin with a dot, as said above
  KeyType type = KeyType::section;
  std::string_view fallback = {};  // the default, as JSON; empty: none
  std::string_view meaning = {};   // one line, for the schema and the reference page
  Range range = {};
  int length = 0;             // of a number_list
  bool nullable = false;      // null is the same as leaving the key out
  bool accepts_true = false;  // `true` stands for 1
  bool per_group = false;     // a number, or a list with one for each parameter group
  Automatic automatic = Automatic::nobody;
  bool auto_inside = false;               // of a section: its keys may be "auto" for their defaults
  bool never_auto = false;                // in such a section: this key may not
  std::string_view other_name = {};       // a second, equally valid name in the same section
  std::string_view choices = {};          // space-separated
  std::string_view any_case = {};         // those of `choices` that are recognized in any case
  std::string_view choices_to_come = {};  // those of `choices` that ZeroRun does not offer
  std::string_view nearest_choices = {};  // the replacement for each of those, as THIS:THAT
  std::string_view types =
      {};  // optimizer or scheduler types that take this key, space-separated; empty: all
  KeyStatus status = KeyStatus::supported;
  std::string_view reason = {};
  std::string_view target = {};  // of an old name: the path of the present one
  bool changes_result = false;   // not offered, and training without it computes something else
  /// Of a section: its switch, a key in it; while the switch has its default, false or "none", the section
  /// has no effect. Of an object: the name of its switches, booleans at any depth, of which one must be true.
  std::string_view switch_key = {};
  std::string_view false_means = {};  // of a section: the object that `false` stands for, as JSON
  std::string_view advice = {};       // what to write when the value is wrong or cannot stay "auto"

  constexpr bool is_integer() const { return type == KeyType::integer || type == KeyType::size; }
  constexpr bool is_list() const { return type == KeyType::number_list || type == KeyType::integer_list; }

  // Defined before its uses: otherwise clang does not evaluate it in constant expressions.
  template <typename Member>
  constexpr KeyFact with(Member KeyFact::*member, Member value) const {
    KeyFact copy = *this;
    copy.*member = value;
    return copy;
  }

  constexpr KeyFact range_of(double low, double high) const { return with(&KeyFact::range, {low, high}); }
  constexpr KeyFact least(double low) const { return with(&KeyFact::range, {.min = low}); }
  constexpr KeyFact above(double low) const { return with(&KeyFact::range, {.min = low, .above_min = true}); }
  /// At least `low` and less than `high`.
  constexpr KeyFact from_below(double low, double high) const {
    return with(&KeyFact::range, {.min = low, .max = high, .below_max = true});
  }
  constexpr KeyFact of_length(int count) const { return with(&KeyFact::length, count); }
  constexpr KeyFact or_null() const { return with(&KeyFact::nullable, true); }
  constexpr KeyFact or_true() const { return with(&KeyFact::accepts_true, true); }
  constexpr KeyFact or_list() const { return with(&KeyFact::per_group, true); }
  constexpr KeyFact filled_by(Automatic who) const { return with(&KeyFact::automatic, who); }
  constexpr KeyFact with_auto() const { return with(&KeyFact::auto_inside, true); }
  constexpr KeyFact without_auto() const { return with(&KeyFact::never_auto, true); }
  constexpr KeyFact also(std::string_view name) const { return with(&KeyFact::other_name, name); }
  constexpr KeyFact in_any_case(std::string_view words) const { return with(&KeyFact::any_case, words); }
  constexpr KeyFact to_come(std::string_view words) const { return with(&KeyFact::choices_to_come, words); }
  constexpr KeyFact nearest(std::string_view pairs) const { return with(&KeyFact::nearest_choices, pairs); }
  constexpr KeyFact for_types(std::string_view words) const { return with(&KeyFact::types, words); }
  constexpr KeyFact switched_by(std::string_view name) const { return with(&KeyFact::switch_key, name); }
  constexpr KeyFact or_false(std::string_view object) const { return with(&KeyFact::false_means, object); }
  constexpr KeyFact advise(std::string_view text) const { return with(&KeyFact::advice, text); }

  /// Accepted; any value but the default gets a note with `why`.
  constexpr KeyFact no_effect(std::string_view why) const {
    return with(&KeyFact::status, KeyStatus::no_effect).with(&KeyFact::reason, why);
  }
  /// Known and not offered; training without it computes the same.
  constexpr KeyFact not_offered(std::string_view why) const {
    return with(&KeyFact::status, KeyStatus::not_offered).with(&KeyFact::reason, why);
  }
  /// Known and not offered: initialize() refuses it unless it has its default or its section is off. Without
  /// `why` the section's reason holds.
  constexpr KeyFact refused(std::string_view why = {}) const {
    return not_offered(why).with(&KeyFact::changes_result, true);
  }
  /// For an old name with values of its own form; keys::old_name() is for one with those of `present`.
  constexpr KeyFact old_form_of(std::string_view present) const {
    return with(&KeyFact::status, KeyStatus::old_name).with(&KeyFact::target, present);
  }
  constexpr KeyFact replaced_by(std::string_view what_to_write) const {
    return with(&KeyFact::status, KeyStatus::replaced).with(&KeyFact::reason, what_to_write);
  }
};

/// The functions that begin a row. Arguments: path, default as JSON ("" for none), meaning. An old name has
/// all other facts of the key whose path is `present`.
namespace keys {

using enum Automatic;

constexpr KeyFact old_name(std::string_view path, std::string_view present) {
  return {.path = path, .status = KeyStatus::old_name, .target = present};
}

struct Row {
  KeyType type;
  constexpr KeyFact operator()(std::string_view path, std::string_view fallback,
                               std::string_view meaning) const {
    const Range range = type == KeyType::size ? Range{.min = 0} : Range{};
    return {.path = path, .type = type, .fallback = fallback, .meaning = meaning, .range = range};
  }
};
inline constexpr Row integer{KeyType::integer}, size{KeyType::size}, number{KeyType::number},
    boolean{KeyType::boolean}, text{KeyType::text}, numbers{KeyType::number_list},
    integers{KeyType::integer_list}, texts{KeyType::text_list};

/// For values without a default.
struct PlainRow {
  KeyType type;
  constexpr KeyFact operator()(std::string_view path, std::string_view meaning) const {
    return {.path = path, .type = type, .meaning = meaning};
  }
};
inline constexpr PlainRow section{KeyType::section}, object{KeyType::object}, anything{KeyType::anything};

/// A section with the switch `enabled`.
constexpr KeyFact feature(std::string_view path, std::string_view meaning) {
  return section(path, meaning).switched_by("enabled");
}
constexpr KeyFact choice(std::string_view path, std::string_view fallback, std::string_view choices,
                         std::string_view meaning) {
  return {
      .path = path, .type = KeyType::choice, .fallback = fallback, .meaning = meaning, .choices = choices};
}

}  // namespace keys

}  // namespace zerorun
