#include "monitor/run_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace zerorun {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no words for these three.
Json json_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string word = json.get<std::string>();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf" || word == "-inf")
    return word == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  throw UserError("expected a number, found \"" + word + "\"");
}

std::optional<double> optional_number(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(number_of(json));
}

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? json_of(*value) : Json();
}

Json parsed(std::string_view json) {
  Json result = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) throw UserError("expected a JSON object");
  return result;
}

constexpr std::array<const char*, 3> kEventNames = {"began", "ended", "failed"};  // of RunEventKind

// Calls `read`, and names the key or type of nlohmann's errors.
template <typename Read>
auto read_fields(const Read& read) try {
  return read();
} catch (const Json::exception& error) {
  throw UserError(error.what());
}

}  // namespace

std::string to_json(const RunRecord& run) {
  Json settings = Json::array(), parameters = Json::array();
  for (const LoggedSetting& setting : run.settings)
    settings.push_back({{"key", setting.key}, {"value", Json::parse(setting.value)}, {"from", setting.from}});
  for (const LoggedParameter& parameter : run.parameters)
    parameters.push_back(
        {{"name", parameter.name}, {"shape", parameter.shape}, {"trained", parameter.is_trained}});
  Json json{{"format", kRunLogFormat},
            {"started", run.started},
            {"libtorch", run.libtorch},
            {"device", run.device},
            {"processor", run.processor},
            {"transport", run.transport},
            {"hosts", run.hosts},
            {"world_size", run.world_size},
            {"mesh",
             {{"data", run.mesh.data},
              {"tensor", run.mesh.tensor},
              {"pipeline", run.mesh.pipeline},
              {"replicate", run.mesh.replicate}}},
            {"micro_batch", run.micro_batch},
            {"accumulation", run.accumulation},
            {"sums_micro_steps", run.sums_micro_steps},
            {"precision", run.precision},
            {"master", run.master},
            {"optimizer", run.optimizer},
            {"seed", run.seed},
            {"hashes", run.has_hashes},
            {"timeline", run.timeline},
            {"settings", settings},
            {"parameters", parameters}};
  if (run.states) {
    json["states"] = {{"parameters", run.states->parameters},
                      {"value", run.states->value},
                      {"gradient", run.states->gradient},
                      {"master", run.states->master},
                      {"moments", run.states->moments}};
  }
  return json.dump(1) + "\n";
}

std::string to_line(const StepRecord& step) {
  Json json{{"step", step.step}};
  if (step.is_start) {
    json["start"] = true;
    json["values"] = step.values;
    return json.dump() + "\n";
  }
  Json losses = Json::array();
  for (const std::optional<double>& loss : step.losses) losses.push_back(or_null(loss));
  json["loss"] = or_null(step.loss);
  json["losses"] = std::move(losses);
  json["grad_norm"] = json_of(step.gradient_norm);
  json["lr"] = json_of(step.lr);
  if (step.loss_scale) json["loss_scale"] = json_of(*step.loss_scale);
  json["skipped"] = step.is_skipped;
  json["samples"] = step.samples;
  if (step.tokens) json["tokens"] = *step.tokens;
  json["seconds"] = json_of(step.seconds);
  json["bytes"] = step.bytes;
  json["elements"] = step.elements;
  if (!step.written.empty()) json["written"] = step.written;
  if (!step.gradients.empty()) json["gradients"] = step.gradients;
  if (!step.values.empty()) json["values"] = step.values;
  return json.dump() + "\n";
}

// The text may quote what a rank has printed.
std::string to_line(const RunEvent& event) {
  const Json json{{"step", event.step},
                  {"event", kEventNames.at(static_cast<size_t>(event.kind))},
                  {"time", event.time},
                  {"text", event.text}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string now_in_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

RunRecord run_of_json(std::string_view text) {
  const Json json = parsed(text);
  return read_fields([&] {
    const auto format = json.at("format").get<int64_t>();
    if (format > kRunLogFormat)
      throw UserError("format " + std::to_string(format) + " is later than the " +
                      std::to_string(kRunLogFormat) + " that this ZeroRun reads");
    RunRecord run{.started = json.at("started"),
                  .device = json.at("device"),
                  .transport = json.at("transport"),
                  .libtorch = json.at("libtorch"),
                  .processor = json.at("processor"),
                  .precision = json.at("precision"),
                  .master = json.at("master"),
                  .optimizer = json.at("optimizer"),
                  .seed = json.at("seed"),
                  .world_size = json.at("world_size"),
                  .mesh = {.data = json.at("mesh").at("data"),
                           .tensor = json.at("mesh").at("tensor"),
                           .pipeline = json.at("mesh").at("pipeline"),
                           .replicate = json.at("mesh").value("replicate", 1)},
                  .micro_batch = json.at("micro_batch"),
                  .accumulation = json.at("accumulation"),
                  .sums_micro_steps = json.at("sums_micro_steps"),
                  .has_hashes = json.at("hashes"),
                  .timeline = json.value("timeline", ""),
                  .hosts = json.at("hosts")};
    for (const Json& setting : json.at("settings"))
      run.settings.push_back({setting.at("key"), setting.at("value").dump(), setting.at("from")});
    for (const Json& parameter : json.at("parameters"))
      run.parameters.push_back({parameter.at("name"), parameter.at("shape"), parameter.at("trained")});
    if (json.contains("states")) {
      const Json& states = json.at("states");
      run.states = {.parameters = states.at("parameters"),
                    .value = states.at("value"),
                    .gradient = states.at("gradient"),
                    .master = states.at("master"),
                    .moments = states.at("moments")};
    }
    return run;
  });
}

StepRecord step_of_json(std::string_view text) {
  const Json json = parsed(text);
  return read_fields([&] {
    StepRecord step{.step = json.at("step"), .is_start = json.value("start", false)};
    step.values = json.value("values", "");
    if (step.is_start) return step;
    step.loss = optional_number(json.at("loss"));
    for (const Json& loss : json.at("losses")) step.losses.push_back(optional_number(loss));
    step.gradient_norm = number_of(json.at("grad_norm"));
    step.lr = number_of(json.at("lr"));
    if (json.contains("loss_scale")) step.loss_scale = number_of(json.at("loss_scale"));
    step.is_skipped = json.at("skipped");
    step.samples = json.at("samples");
    if (json.contains("tokens")) step.tokens = json.at("tokens");
    step.seconds = number_of(json.at("seconds"));
    for (const auto& [name, bytes] : json.at("bytes").items()) step.bytes[name] = bytes.get<int64_t>();
    for (const auto& [name, sent] : json.at("elements").items()) step.elements[name] = number_of(sent);
    step.written = json.value("written", std::vector<int64_t>());
    step.gradients = json.value("gradients", "");
    return step;
  });
}

RunEvent event_of_json(std::string_view text) {
  const Json json = parsed(text);
  return read_fields([&] {
    const auto name = std::ranges::find(kEventNames, json.at("event").get<std::string>());
    if (name == kEventNames.end()) throw UserError("unknown event " + json.at("event").dump());
    return RunEvent{.step = json.at("step"),
                    .kind = static_cast<RunEventKind>(name - kEventNames.begin()),
                    .time = json.at("time"),
                    .text = json.at("text")};
  });
}

// Each line has one key and, after the value, where this is from.
std::vector<LoggedSetting> settings_of(const std::string& shown) {
  std::vector<LoggedSetting> settings;
  std::vector<std::string> sections;
  size_t begin = 0;
  while (begin < shown.size()) {
    const size_t end = std::min(shown.find('\n', begin), shown.size());
    const std::string line = shown.substr(begin, end - begin);
    begin = end + 1;
    const size_t key = line.find('"'), key_end = line.find("\": ");
    if (key == std::string::npos || key_end == std::string::npos) {
      if (line.find('}') != std::string::npos && !sections.empty()) sections.pop_back();
      continue;
    }
    const std::string name = line.substr(key + 1, key_end - key - 1);
    const std::string path = sections.empty() ? name : sections.back() + "." + name;
    if (line.substr(key_end + 3) == "{") {
      sections.push_back(path);
      continue;
    }
    const size_t comment = line.rfind(" // ");
    std::string value =
        line.substr(key_end + 3, comment == std::string::npos ? comment : comment - key_end - 3);
    value.erase(value.find_last_not_of(" ,") + 1);
    if (Json::accept(value))
      settings.push_back({path, value, comment == std::string::npos ? "" : line.substr(comment + 4)});
  }
  return settings;
}

}  // namespace zerorun
