#include "benchmarks/gpu/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

bool is_met(const Figure& figure) {
  return figure.goal.kind == Goal::Kind::at_least ? figure.value >= figure.goal.bound
                                                  : figure.value <= figure.goal.bound;
}

std::string text_of(double value) {
  const double size = std::abs(value);
  const int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string text_of(const Goal& goal) {
  return (goal.kind == Goal::Kind::at_least ? ">= " : "<= ") + text_of(goal.bound);
}

std::string heading_of(const Figure& figure) {
  return figure.unit.empty() ? figure.name : figure.name + " [" + figure.unit + "]";
}

void append_new(std::vector<std::string>& texts, const std::string& text) {
  if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
}

void print_cell(const std::string& text, size_t width) {
  std::printf("  %*s", static_cast<int>(width), text.c_str());
}

}  // namespace

Report::Report(const nlohmann::json& about) : about_(std::make_shared<nlohmann::json>(about)) {
  for (const auto& [name, value] : about.items())
    std::printf("%s: %s\n", name.c_str(), (value.is_string() ? std::string(value) : value.dump()).c_str());
}

void Report::add(Figure figure) {
  figures_.push_back(std::move(figure));
}

void Report::add_note(const std::string& part, const std::string& text) {
  notes_[part].push_back(text);
}

void Report::add_failure(const std::string& part, const std::string& subject, const std::string& reason) {
  std::printf("\n%s: %s failed: %s\n", part.c_str(), subject.c_str(), reason.c_str());
  failed_.push_back({part, subject, reason});
}

void Report::add_skipped(const std::string& part, const std::string& subject, const std::string& reason) {
  std::printf("\n%s: %s skipped: %s\n", part.c_str(), subject.c_str(), reason.c_str());
  skipped_.push_back({part, subject, reason});
}

void Report::print_new() {
  std::vector<std::string> parts = printed_;
  for (const Figure& figure : figures_) append_new(parts, figure.part);
  for (size_t part = printed_.size(); part < parts.size(); ++part) print_part(parts[part]);
  printed_ = std::move(parts);
  std::fflush(stdout);
}

void Report::print_part(const std::string& part) const {
  std::vector<Figure> figures;
  std::vector<std::string> rows, columns;
  size_t row_width = 0;
  for (const Figure& figure : figures_) {
    if (figure.part != part) continue;
    figures.push_back(figure);
    append_new(rows, figure.subject);
    append_new(columns, heading_of(figure));
    row_width = std::max(row_width, figure.subject.size());
  }
  std::printf("\n%s\n", part.c_str());
  if (const auto found = notes_.find(part); found != notes_.end()) {
    for (const std::string& text : found->second) std::printf("  %s\n", text.c_str());
  }
  std::printf("%*s", static_cast<int>(row_width), "");
  auto width_of = [](const std::string& column) {
    constexpr size_t kNarrowest = 8;
    return std::max(column.size(), kNarrowest);
  };
  for (const std::string& column : columns) print_cell(column, width_of(column));
  std::printf("\n");
  for (const std::string& row : rows) {
    std::printf("%-*s", static_cast<int>(row_width), row.c_str());
    for (const std::string& column : columns) {
      const auto found = std::find_if(figures.begin(), figures.end(), [&](const Figure& figure) {
        return figure.subject == row && heading_of(figure) == column;
      });
      print_cell(found == figures.end() ? "" : text_of(found->value), width_of(column));
    }
    std::printf("\n");
  }
  for (const Figure& figure : figures) {
    if (figure.goal.kind == Goal::Kind::none) continue;
    std::printf("  goal: %s, %s %s: %s, %s\n", figure.subject.c_str(), figure.name.c_str(),
                text_of(figure.goal).c_str(), text_of(figure.value).c_str(),
                is_met(figure) ? "met" : "NOT met");
  }
}

nlohmann::json Report::entries_of(const std::vector<Missing>& all) {
  nlohmann::json entries = nlohmann::json::array();
  for (const Missing& one : all)
    entries.push_back({{"part", one.part}, {"case", one.subject}, {"reason", one.reason}});
  return entries;
}

void Report::write(const std::string& file) const {
  nlohmann::json result = *about_;
  result["figures"] = nlohmann::json::array();
  for (const Figure& figure : figures_) {
    nlohmann::json entry{{"part", figure.part},
                         {"case", figure.subject},
                         {"name", figure.name},
                         {"unit", figure.unit},
                         {"value", figure.value}};
    if (figure.goal.kind != Goal::Kind::none) {
      entry["goal"] = text_of(figure.goal);
      entry["met"] = is_met(figure);
    }
    result["figures"].push_back(std::move(entry));
  }
  result["notes"] = notes_;
  result["failed"] = entries_of(failed_);
  result["skipped"] = entries_of(skipped_);
  std::ofstream out(file);
  // Errors of other libraries may contain bytes that are not UTF-8.
  out << result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  out.close();
  if (!out) throw UserError("cannot write " + file + ": give --json a file in a folder that exists");
}

}  // namespace zerorun
