// Reads the keys of one section of a configuration against the key table, and reports what does not fit.
// Lives during one load, beside the document and the diagnostics that it points to; not for sharing between
// threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/diagnostics.h"
#include "config/document.h"
#include "config/key_table.h"

namespace zerorun {

class SectionReader {
 public:
  /// Checks the names of all keys. `type` is the optimizer or scheduler whose params these are; empty: any.
  SectionReader(const Value& object, std::string path, Diagnostics& diagnostics, std::string_view type = {});

  /// Each leaves `target` as it is when the key is absent or its value is refused. False: refused, and
  /// reported.
  bool read(std::string_view name, int64_t& target);
  bool read(std::string_view name, double& target);
  bool read(std::string_view name, bool& target);
  bool read(std::string_view name, std::optional<int64_t>& target);
  bool read(std::string_view name, std::optional<double>& target);
  bool read_pair(std::string_view name, double& first, double& second);
  /// The choice as the key table spells it.
  bool read_choice(std::string_view name, std::optional<std::string>& target);

  /// The reader of a section within this one; nothing if it is absent or refused.
  std::optional<SectionReader> section(std::string_view name, std::string_view type = {});

  /// The value of a key of this section under whichever of its names the file has, or null.
  const Value* find(std::string_view name) const { return object_.find(written(name)); }

  /// Reports a mistake in the value of `name`; if the key is absent, the mistake is in the section.
  void report(std::string_view name, std::string expected, std::string found, std::string remedy);
  void note(std::string_view name, std::string_view text);
  /// Notes that the value of `name`, which is there, changes nothing, for the reason in the key table.
  void note_unchanging(std::string_view name);

  /// Reports that the required key `name` is absent.
  void report_absent(std::string_view name);

 private:
  void check_key(const Member& member);
  void check_unchanging(const KeyFact& fact, const Member& member);
  void refuse(std::string_view name, const KeyFact& fact, const Value& value);
  bool read_number(const KeyFact& fact, const Value& value, double& target);
  const Value* find_set(const KeyFact& fact, std::string_view name) const;
  const KeyFact& fact_of(std::string_view name) const;
  std::string_view written(std::string_view name) const;

  const Value& object_;
  std::string path_;
  Diagnostics& diagnostics_;
  std::string type_;
};

}  // namespace zerorun
