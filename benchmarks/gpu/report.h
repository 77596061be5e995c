// The figures of bench_gpu: a table for each part, and JSON for programs. One thread.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace zerorun {

/// The bound that a figure should keep.
struct Goal {
  enum class Kind { none, at_least, at_most } kind = Kind::none;
  double bound = 0;
};
inline Goal at_least(double bound) {
  return {Goal::Kind::at_least, bound};
}
inline Goal at_most(double bound) {
  return {Goal::Kind::at_most, bound};
}

/// In a part's table `subject` is the row and `name` with `unit` the column.
struct Figure {
  std::string part;
  std::string subject;
  std::string name;
  std::string unit;  // empty: a ratio or a plain number
  double value;
  Goal goal = {};
};

class Report {
 public:
  /// `about`: facts for the head of the JSON and the first line of the output, such as the card's name.
  explicit Report(const nlohmann::json& about);

  void add(Figure figure);
  /// A sentence printed above the table of `part`, for example what its byte counts include.
  void add_note(const std::string& part, const std::string& text);
  /// Notes a measurement that ended with an error.
  void add_failure(const std::string& part, const std::string& subject, const std::string& reason);
  /// Notes a measurement for which there was no time.
  void add_skipped(const std::string& part, const std::string& subject, const std::string& reason);

  bool has_failures() const { return !failed_.empty(); }
  /// Prints the tables of all parts that are complete and not printed yet.
  void print_new();
  /// Throws UserError if the file cannot be written.
  void write(const std::string& file) const;

 private:
  /// A measurement without a figure.
  struct Missing {
    std::string part;
    std::string subject;
    std::string reason;
  };

  static nlohmann::json entries_of(const std::vector<Missing>& all);
  void print_part(const std::string& part) const;

  std::shared_ptr<const nlohmann::json> about_;
  std::vector<Figure> figures_;
  std::map<std::string, std::vector<std::string>> notes_;  // texts by part
  std::vector<Missing> failed_;
  std::vector<Missing> skipped_;
  std::vector<std::string> printed_;  // parts
};

}  // namespace zerorun
