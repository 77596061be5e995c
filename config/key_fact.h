// The description of one configuration key, and functions to write a table of such descriptions. Constant
// data; any thread.
//
// The tables in config/keys/ have one row for every key that a ds_config.json can have. The reader, the JSON
// Schema (config/schema.h), the reference page (config/reference.h) and the suggestions are all made from
// these rows.
//
// A row begins with a function named after the key's type, and chained calls add other properties. A path
// that begins with a dot is relative to the last section row before it:
//
//   section("compile", "compilation of the training step").not_supported("nothing is compiled"),
//   boolean(".debug_log", "false", "log what is compiled"),
//   integer(".free_activation_threshold", "10485760", "smallest activation to free, in bytes").least(0),
//
// A key in a section that has no effect or is not supported inherits the section's status and reason, unless
// its own row sets them. A section that will never be supported has one row of the type object, so that the
// keys inside it are not checked.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace zerorun::config {

enum class KeyType {
  section,  // an object whose keys have rows of their own
  integer,  // also written as 5e8, 2.0 or "8"
  size,     // a number of elements; a fraction such as 15099494.4 is rounded down
  number,   // an integer or a fraction
  boolean,  // also "true" and "false", 1 and 0
  text,
  choice,       // one of the texts in `choices`
  number_list,  // `length` numbers, or any number of them if `length` is 0
  text_list,    // an array of texts, or a single text
  object,       // an object whose keys are not checked
  anything
};

/// Where the value of a key that says "auto" comes from.
enum class Automatic {
  nobody,    // "auto" is refused
  program,   // the program's arguments
  model,     // computed from the model's hidden size
  fallback,  // the default, unless the program's arguments have a value
};

enum class KeyStatus {
  supported,
  no_effect,      // accepted; `reason` says why it has no effect here
  not_supported,  // known from DeepSpeed; `reason` says what happens instead
  old_name,       // another name of `target`, still accepted
  replaced        // refused; `reason` says what to write
};

struct ValueRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool below_max = false;  // max itself is excluded
};

struct KeyFact {
  std::string_view path;  // in config/keys/ it may begin with a dot (see above)
  KeyType type = KeyType::section;
  std::string_view fallback = {};  // the default as JSON; empty: no default
  std::string_view meaning = {};   // one line, for the schema and the reference page
  ValueRange range = {};
  int length = 0;             // required length of a number_list; 0: any
  bool nullable = false;      // null has the same effect as leaving the key out
  bool accepts_true = false;  // `true` is read as 1
  bool per_group = false;     // accepts a number, or a list with one number per parameter group
  Automatic automatic = Automatic::nobody;
  bool auto_inside = false;                   // section: its keys accept "auto", which means their defaults
  bool never_auto = false;                    // exempts this key from the section's auto_inside
  std::string_view other_name = {};           // a second valid name in the same section
  std::string_view choices = {};              // space-separated
  std::string_view any_case = {};             // those `choices` that are matched case-insensitively
  std::string_view unsupported_choices = {};  // those `choices` that ZeroRun does not support
  std::string_view nearest_choices = {};      // CHOICE:REPLACEMENT for each of unsupported_choices
  std::string_view types =
      {};  // optimizer or scheduler types that have this key, space-separated; empty: all
  KeyStatus status = KeyStatus::supported;
  std::string_view reason = {};
  std::string_view target = {};  // old name: path of the present name
  bool removed = false;          // DeepSpeed has removed the key after 0.19.6
  bool secret = false;           // a text that is not printed
  bool changes_result = false;   // not supported, and training without it gives different results
  /// If the key is a section: the name of the key in it that switches it on or off. While this switch has its
  /// default (false or "none"), the section has no effect. Likewise for an object, whose switch has no row.
  std::string_view switch_key = {};
  bool deep_switches = false;           // object: it is on if a switch at any depth in it is on
  bool asks_if_present = false;         // object without a switch: even an empty one asks for the feature
  std::string_view refused_parts = {};  // object: paths in it of objects that are refused while they are on
  std::string_view false_means = {};    // section: the JSON object that `false` stands for
  std::string_view advice = {};         // remedy for a wrong value or an unresolved "auto"

  constexpr bool is_integer() const { return type == KeyType::integer || type == KeyType::size; }

  // Defined before its first use, because clang otherwise cannot evaluate it in constant expressions.
  template <typename Member>
  constexpr KeyFact with(Member KeyFact::*member, Member value) const {
    KeyFact copy = *this;
    copy.*member = value;
    return copy;
  }

  constexpr KeyFact range_of(double low, double high) const { return with(&KeyFact::range, {low, high}); }
  constexpr KeyFact least(double low) const { return with(&KeyFact::range, {.min = low}); }
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
  constexpr KeyFact is_secret() const { return with(&KeyFact::secret, true); }
  constexpr KeyFact also(std::string_view name) const { return with(&KeyFact::other_name, name); }
  constexpr KeyFact in_any_case(std::string_view words) const { return with(&KeyFact::any_case, words); }
  constexpr KeyFact unsupported(std::string_view words) const {
    return with(&KeyFact::unsupported_choices, words);
  }
  constexpr KeyFact nearest(std::string_view pairs) const { return with(&KeyFact::nearest_choices, pairs); }
  constexpr KeyFact for_types(std::string_view words) const { return with(&KeyFact::types, words); }
  constexpr KeyFact switched_by(std::string_view name) const { return with(&KeyFact::switch_key, name); }
  constexpr KeyFact at_any_depth() const { return with(&KeyFact::deep_switches, true); }
  constexpr KeyFact used_if_present() const { return with(&KeyFact::asks_if_present, true); }
  constexpr KeyFact refused_parts_are(std::string_view paths) const {
    return with(&KeyFact::refused_parts, paths);
  }
  constexpr KeyFact or_false(std::string_view object) const { return with(&KeyFact::false_means, object); }
  constexpr KeyFact advise(std::string_view text) const { return with(&KeyFact::advice, text); }

  /// The key is accepted. A value other than the default gets a note with the reason `why`.
  constexpr KeyFact no_effect(std::string_view why) const {
    return with(&KeyFact::status, KeyStatus::no_effect).with(&KeyFact::reason, why);
  }
  /// The key is known but not supported. Training without it gives the same results.
  constexpr KeyFact not_supported(std::string_view why) const {
    return with(&KeyFact::status, KeyStatus::not_supported).with(&KeyFact::reason, why);
  }
  /// The key is known but not supported, and training without it would give different results. initialize()
  /// refuses any value except the default, unless the section is switched off. Without `why` the section's
  /// reason is used.
  constexpr KeyFact refused(std::string_view why = {}) const {
    return not_supported(why).with(&KeyFact::changes_result, true);
  }
  /// For a key of a feature that DeepSpeed has removed after 0.19.6.
  constexpr KeyFact removed_from_deepspeed() const { return with(&KeyFact::removed, true); }
  /// For an old name whose values have a different form than the values of `present`. For an old name with
  /// the same values use keys::old_name().
  constexpr KeyFact old_form_of(std::string_view present) const {
    return with(&KeyFact::status, KeyStatus::old_name).with(&KeyFact::target, present);
  }
  constexpr KeyFact replaced_by(std::string_view what_to_write) const {
    return with(&KeyFact::status, KeyStatus::replaced).with(&KeyFact::reason, what_to_write);
  }
};

/// The functions that begin a row. Their arguments are the path, the default as JSON ("" for no default), and
/// the meaning. A row of old_name() takes all other properties from the row of `present`.
namespace keys {

using enum Automatic;

constexpr KeyFact old_name(std::string_view path, std::string_view present) {
  return {.path = path, .status = KeyStatus::old_name, .target = present};
}

struct Row {
  KeyType type;
  constexpr KeyFact operator()(std::string_view path, std::string_view fallback,
                               std::string_view meaning) const {
    const ValueRange range = type == KeyType::size ? ValueRange{.min = 0} : ValueRange{};
    return {.path = path, .type = type, .fallback = fallback, .meaning = meaning, .range = range};
  }
};
inline constexpr Row integer{KeyType::integer}, size{KeyType::size}, number{KeyType::number},
    boolean{KeyType::boolean}, text{KeyType::text}, numbers{KeyType::number_list}, texts{KeyType::text_list};

/// For types whose values have no default.
struct PlainRow {
  KeyType type;
  constexpr KeyFact operator()(std::string_view path, std::string_view meaning) const {
    return {.path = path, .type = type, .meaning = meaning};
  }
};
inline constexpr PlainRow section{KeyType::section}, object{KeyType::object}, anything{KeyType::anything};

/// A section whose switch is the key `enabled`.
constexpr KeyFact feature(std::string_view path, std::string_view meaning) {
  return section(path, meaning).switched_by("enabled");
}
inline constexpr KeyFact enabled = boolean(".enabled", "false", "enable the feature");
constexpr KeyFact choice(std::string_view path, std::string_view fallback, std::string_view choices,
                         std::string_view meaning) {
  return {
      .path = path, .type = KeyType::choice, .fallback = fallback, .meaning = meaning, .choices = choices};
}

}  // namespace keys

}  // namespace zerorun::config
