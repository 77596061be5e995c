#include "doctor/finding.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace zerorun::doctor {
namespace {

constexpr std::array<const char*, 3> kVerdicts = {"ok", "note", "problem"};
constexpr size_t kSubjectWidth = 16;

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

std::string to_text(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += "  " + padded(kVerdicts[static_cast<size_t>(finding.verdict)], 9) +
            padded(finding.subject, kSubjectWidth) + " " + finding.text;
    if (!finding.remedy.empty()) text += ": " + finding.remedy;
    text += "\n";
  }
  return text;
}

bool has_problem(const Findings& findings) {
  return std::ranges::count(findings, Verdict::problem, &Finding::verdict) > 0;
}

nlohmann::ordered_json to_json(const Findings& findings) {
  auto json = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json.push_back({{"verdict", kVerdicts[static_cast<size_t>(finding.verdict)]},
                    {"subject", finding.subject},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  return json;
}

Findings findings_from_json(const nlohmann::ordered_json& json) {
  Findings findings;
  for (const auto& item : json) {
    const auto verdict = std::ranges::find(kVerdicts, item.at("verdict").get<std::string>());
    findings.push_back({.verdict = static_cast<Verdict>(std::min<ptrdiff_t>(verdict - kVerdicts.begin(), 2)),
                        .subject = item.at("subject"),
                        .text = item.at("text"),
                        .remedy = item.at("remedy")});
  }
  return findings;
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text.data();
}

}  // namespace zerorun::doctor
