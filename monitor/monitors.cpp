#include "monitor/monitors.h"

#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"

namespace zerorun {
namespace {

constexpr size_t kLongestTag = 200;  // it is a file's name too

template <typename Writer>
void open(std::optional<Writer>& writer, const FileMonitorConfig& config, const std::string& section) try {
  if (config.enabled) writer.emplace(std::filesystem::path(config.output_path) / config.job_name);
} catch (const std::exception& error) {
  throw UserError(section + ".output_path \"" + config.output_path + "\", " + section + ".job_name \"" +
                  config.job_name + "\": expected a folder that rank 0 can write to, but it " + error.what() +
                  ": name another folder, or set " + section + ".enabled to false");
}

template <typename Write>
void try_to(const Write& write, bool& failed, const std::string& monitor) {
  try {
    write();
  } catch (const std::exception& error) {
    if (std::exchange(failed, true)) return;
    log_warning(monitor + ": " + error.what() +
                ": training goes on, and values are missing in this monitor (this warning comes once)");
  }
}

}  // namespace

Monitors::Monitors(const MonitoringConfig& config, EventSink sink) : sink_(std::move(sink)) {
  open(csv_, config.csv, "csv_monitor");
  open(tensorboard_, config.tensorboard, "tensorboard");
}

void Monitors::write(const MonitorEvent& event) {
  if (csv_) try_to([&] { csv_->write(event); }, csv_failed_, "csv_monitor");
  if (tensorboard_) try_to([&] { tensorboard_->write(event); }, tensorboard_failed_, "tensorboard");
  if (sink_) try_to([&] { sink_(event); }, sink_failed_, "InitializeOptions::event_sink");
}

std::vector<std::string> warnings_of_monitors(const MonitoringConfig& config, bool has_sink) {
  std::vector<std::string> warnings;
  const auto add = [&](bool enabled, const std::string& key) {
    if (!enabled || has_sink) return;
    warnings.push_back(key +
                       ".enabled: only Python programs write to this monitor, so nothing is written: "
                       "enable csv_monitor or tensorboard, or set InitializeOptions::event_sink");
  };
  add(config.wandb.enabled, "wandb");
  add(config.comet.enabled, "comet");
  return warnings;
}

void check_tag(const std::string& tag) {
  if (!tag.empty() && tag.size() <= kLongestTag && printable(tag) == tag) return;
  throw UserError("engine.log(): expected a tag of 1 to " + std::to_string(kLongestTag) +
                  " bytes of UTF-8 without control characters, such as \"eval/loss\", found \"" +
                  printable(tag.substr(0, kLongestTag)) + "\"");
}

}  // namespace zerorun
