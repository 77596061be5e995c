#include "plan/report.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"
#include "plan/fitting_config.h"

namespace zerorun {
namespace {

using nlohmann::ordered_json;

struct Category {
  const char* name;
  const char* key;
  int64_t BytesByCategory::*bytes;
};
constexpr std::array kOfDevice = {
    Category{"parameters", "parameters", &BytesByCategory::parameters},
    Category{"gradients", "gradients", &BytesByCategory::gradients},
    Category{"master weights", "master", &BytesByCategory::master},
    Category{"moments", "moments", &BytesByCategory::moments},
    Category{"buckets", "buckets", &BytesByCategory::buckets},
    Category{"module buffers", "buffers", &BytesByCategory::buffers},
    Category{"gathered parameters", "gathered", &BytesByCategory::gathered},
};
constexpr std::array kElsewhere = {
    Category{"on the host", "on_host", &BytesByCategory::on_host},
    Category{"in files", "in_files", &BytesByCategory::in_files},
};
constexpr double kSecondsPerDay = 86400;

std::string in_units(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits[unit]);
  return text.data();
}

std::string in_units(int64_t bytes) {
  return in_units(static_cast<double>(bytes));
}

std::string number(double value) {
  std::string digits = std::to_string(std::llround(value));
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string left(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string right(const std::string& text, size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + text;
}

std::string row(const std::string& name, const std::string& value, const std::string& of_host = "") {
  return "  " + left(name, 22) + right(value, 12) + (of_host.empty() ? "" : right(of_host, 16)) + "\n";
}

int ranks_of_host(const PlanRequest& request) {
  return request.world_size / request.hosts;
}

// Bytes written to the files of one host.
double written_per_step(const PlanReport& report) {
  return static_cast<double>(report.plan.file_bytes_per_step) * ranks_of_host(report.request);
}

double written_per_day(const PlanReport& report) {
  return written_per_step(report) * kSecondsPerDay / report.request.step_seconds.value_or(1);
}

double years(const PlanReport& report) {
  return *report.request.endurance / written_per_day(report) / 365;
}

std::string memory_table(const PlanReport& report) {
  const int ranks = ranks_of_host(report.request);
  std::string text = row("bytes, at most", "of a rank", "of a host");
  const auto add = [&](const std::string& name, int64_t bytes) {
    text += row(name, in_units(bytes), in_units(bytes * ranks));
  };
  for (const Category& category : kOfDevice) add(category.name, report.plan.peak.*category.bytes);
  if (report.plan.activations) add("activations", *report.plan.activations);
  if (report.plan.transfers > 0) add("transfers in 8 bits", report.plan.transfers);
  add("together", report.plan.memory());
  if (!report.plan.activations) {
    text += row("activations", "not known");
    if (!report.unknown_activations.empty()) text += "    " + report.unknown_activations + "\n";
  }
  for (const Category& category : kElsewhere) {
    const int64_t bytes = report.plan.peak.*category.bytes;
    if (bytes > 0) add(category.name, bytes);
  }
  const std::vector<int64_t>& stages = report.plan.stages;
  if (stages.empty()) return text;
  text += "together, by pipeline stage (above: the largest)\n";
  for (size_t stage = 0; stage < stages.size(); ++stage)
    text += row("stage " + std::to_string(stage), in_units(stages[stage]));
  return text;
}

std::string traffic(const PlanReport& report) {
  const SentPerStep& sent = report.plan.sent;
  std::string text = "sent by a rank in an optimizer step\n";
  text += "  " + left("gather", 22) + right(in_units(sent.gathered_bytes), 12) + "  " +
          number(sent.gathered_elements) + " elements\n";
  text += "  " + left("reduce", 22) + right(in_units(sent.reduced_bytes), 12) + "  " +
          number(sent.reduced_elements) + " elements\n";
  if (sent.passed_bytes > 0)
    text += "  " + left("pass to other stages", 22) + right(in_units(sent.passed_bytes), 12) + "\n";
  if (report.request.hosts > 1) {
    const int ranks = ranks_of_host(report.request);
    text += "sent by a host to the others in an optimizer step\n" +
            row("all ranks to all", in_units(sent.between_hosts * ranks)) +
            row("on two levels", in_units(sent.between_hosts_on_levels * ranks)) +
            (report.request.on_gpu ? "    NCCL chooses: on two levels is the least\n" : "");
  }
  if (report.plan.file_bytes_per_step == 0) return text;
  text += "written to the files of a host\n" + row("in a step", in_units(written_per_step(report)));
  if (report.request.step_seconds) text += row("in a day", in_units(written_per_day(report)));
  if (report.request.endurance) {
    std::array<char, 64> wear{};
    std::snprintf(wear.data(), wear.size(), "%.2f years", years(report));
    text += row("the drive lasts", wear.data());
  }
  return text;
}

std::string other_worlds(const PlanReport& report) {
  std::string text = "  " + left("ranks", 8) + right("memory", 12) + right("on the host", 14) +
                     right("in files", 14) + right("sent in a step", 18) + "   (of a rank)\n";
  for (const PlanOfWorld& other : report.others) {
    text += "  " + left(std::to_string(other.world_size), 8);
    if (other.plan) {
      const RankPlan& plan = *other.plan;
      text += right(in_units(plan.memory()), 12) + right(in_units(plan.peak.on_host), 14) +
              right(in_units(plan.peak.in_files), 14) + right(in_units(plan.sent.bytes()), 18);
      if (report.request.memory && plan.memory() <= *report.request.memory) text += "   fits";
    } else {
      text += "  the configuration does not allow it";
    }
    text += "\n";
  }
  return text;
}

std::string verdict(const PlanReport& report) {
  if (!report.request.memory) return "";
  const std::string limit = in_units(*report.request.memory);
  if (report.fits())
    return "fits into " + limit + " with " + in_units(*report.request.memory - report.plan.memory()) +
           (report.plan.activations ? " left for everything else\n"
                                    : " left for activations and everything else\n");
  const std::string too_much = "does not fit into " + limit + ": ";
  if (!report.fitting)
    return too_much +
           "no change of stage, offloading and bucket sizes is enough: use more ranks or a smaller model\n";
  return too_much + "with this change a rank takes " + in_units(report.fitting->plan.memory()) + "\n" +
         describe(report.fitting->changes);
}

ordered_json to_json(const RankPlan& plan) {
  ordered_json bytes = ordered_json::object();
  for (const Category& category : kOfDevice) bytes[category.key] = plan.peak.*category.bytes;
  bytes["activations"] = plan.activations ? ordered_json(*plan.activations) : ordered_json(nullptr);
  bytes["transfers_in_8_bits"] = plan.transfers;
  bytes["memory"] = plan.memory();
  for (const Category& category : kElsewhere) bytes[category.key] = plan.peak.*category.bytes;
  return {{"bytes", std::move(bytes)},
          {"sent_per_step",
           {{"gather", {{"elements", plan.sent.gathered_elements}, {"bytes", plan.sent.gathered_bytes}}},
            {"reduce", {{"elements", plan.sent.reduced_elements}, {"bytes", plan.sent.reduced_bytes}}},
            {"pass", {{"bytes", plan.sent.passed_bytes}}},
            {"between_hosts", {{"bytes", plan.sent.between_hosts}}},
            {"between_hosts_on_two_levels", {{"bytes", plan.sent.between_hosts_on_levels}}}}},
          {"written_per_step", plan.file_bytes_per_step},
          {"memory_by_stage", plan.stages}};
}

ordered_json to_json(const FittingConfig& fitting) {
  ordered_json changes = ordered_json::object();
  for (const ConfigChange& change : fitting.changes) {
    const std::string before = change.before.empty() ? "null" : change.before;
    changes[change.key] = {{"before", ordered_json::parse(before)},
                           {"after", ordered_json::parse(change.after)}};
  }
  return {{"zero_optimization", std::move(changes)}, {"rank", to_json(fitting.plan)}};
}

}  // namespace

std::string to_text(const PlanReport& report) {
  const PlanRequest& request = report.request;
  std::string text = "model: " + number(static_cast<double>(report.parameters)) + " parameters in " +
                     std::to_string(report.tensors) + " tensors\n" +
                     "job: " + std::to_string(request.world_size) + " ranks on " +
                     (request.on_gpu ? "GPUs" : "CPUs") + ", " + std::to_string(request.hosts) +
                     (request.hosts == 1 ? " host\n" : " hosts\n");
  text += memory_table(report) + traffic(report);
  if (!report.others.empty()) text += "other numbers of ranks\n" + other_worlds(report);
  return text + verdict(report);
}

std::string to_json_text(const PlanReport& report) {
  const PlanRequest& request = report.request;
  ordered_json json = {{"parameters", report.parameters},           {"tensors", report.tensors},
                       {"world_size", request.world_size},          {"hosts", request.hosts},
                       {"device", request.on_gpu ? "cuda" : "cpu"}, {"rank", to_json(report.plan)}};
  if (!report.unknown_activations.empty()) json["unknown_activations"] = report.unknown_activations;
  ordered_json others = ordered_json::array();
  for (const PlanOfWorld& other : report.others) {
    others.push_back({{"world_size", other.world_size},
                      {"rank", other.plan ? to_json(*other.plan) : ordered_json(nullptr)}});
  }
  json["other_world_sizes"] = std::move(others);
  if (request.step_seconds) json["written_per_day_and_host"] = written_per_day(report);
  if (request.endurance && report.plan.file_bytes_per_step > 0) json["years"] = years(report);
  if (request.memory) {
    json["memory"] = *request.memory;
    json["fits"] = report.fits();
  }
  if (report.fitting) json["change"] = to_json(*report.fitting);
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int print_plan(const PlanReport& report) {
  const std::string answer = report.request.json ? to_json_text(report) : to_text(report);
  std::fputs(printable(answer, "\n\t").c_str(), stdout);
  std::fflush(stdout);
  return report.fits() ? 0 : 1;
}

}  // namespace zerorun
