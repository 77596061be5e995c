#include "config/config.h"

#include "base/error.h"
#include "config/automatic.h"
#include "config/check.h"
#include "config/document.h"
#include "config/foreign_file.h"
#include "config/reader.h"
#include "config/sections.h"

namespace zerorun {
namespace {

/// Makes the Config from settings that have passed the checks against the key table. Applies the rules that
/// involve several keys.
Config resolve(const config::Resolution& resolution, std::optional<int> world_size) {
  const config::Settings& settings = resolution.settings;
  for (const std::string_view section : {"optimizer", "scheduler"}) {
    const std::string type = std::string(section) + ".type";
    if (!settings.find(section) || settings.undecided(section) || settings.find(type)) continue;
    resolution.report(type, config::expected_of(config::row_of(type)), "nothing",
                      config::advice_of(config::row_of(type)));
  }
  Config config;
  config.batch = config::resolve_batch(resolution, world_size);
  config.optimizer = config::resolve_optimizer(resolution);
  config.scheduler = config::resolve_scheduler(resolution);
  config.zero = config::resolve_zero(resolution);
  config.precision = config::resolve_precision(resolution);
  config::resolve_gradients(resolution, config);
  config.steps_per_print = settings.get<int64_t>("steps_per_print");
  resolution.read("wall_clock_breakdown", config.wall_clock_breakdown);
  resolution.read("checkpoint.use_node_local_storage", config.node_local_checkpoints);
  return config;
}

// If the text has errors because it is another program's file, reports that as the first error.
void note_foreign_file(std::string_view text, config::Diagnostics& diagnostics) {
  if (!diagnostics.any(config::Severity::error)) return;
  const config::ForeignFile* foreign = config::recognise_foreign_file(text);
  if (foreign == nullptr) return;
  diagnostics.report({{}, "", "a ds_config.json", std::string(foreign->name), std::string(foreign->remedy)});
}

}  // namespace

void config::Resolution::report(std::string_view path, std::string expected, std::string found,
                                std::string remedy) const {
  diagnostics.report({settings.place(path), settings.written(path), std::move(expected), std::move(found),
                      std::move(remedy)});
}

void config::Resolution::note(std::string_view path, std::string_view text) const {
  diagnostics.add_message(config::Severity::note, settings.place(path), settings.written(path), text);
}

void config::Resolution::warn(std::string_view path, std::string_view text) const {
  diagnostics.add_message(config::Severity::warning, settings.place(path), settings.written(path), text);
}

config::CheckedConfig config::check_config(std::string_view text, const std::string& origin,
                                           const config::CheckOptions& options) {
  config::CheckedConfig checked{{}, config::Diagnostics(origin, text)};
  const std::optional<config::Value> document = config::read_document(text, checked.diagnostics);
  if (!document) {
    note_foreign_file(text, checked.diagnostics);
    return checked;
  }
  checked.settings = config::read_settings(
      *document,
      {.purpose = config::Purpose::check, .hidden_size = options.hidden_size, .compat = options.compat},
      checked.diagnostics);
  resolve({checked.settings, checked.diagnostics}, options.world_size);
  note_foreign_file(text, checked.diagnostics);
  return checked;
}

Config parse_config(std::string_view text, const std::string& origin, const LoadOptions& options) {
  ZR_CHECK(options.world_size >= 1, "world size " + std::to_string(options.world_size));
  config::check_automatic_options(options);
  config::Diagnostics diagnostics(origin, text);
  const std::optional<config::Value> document = config::read_document(text, diagnostics);
  if (!document) {
    note_foreign_file(text, diagnostics);
    diagnostics.throw_if_any();
  }
  config::Settings settings = config::read_settings(
      *document,
      {.purpose = config::Purpose::run, .arguments = options.arguments, .hidden_size = options.hidden_size},
      diagnostics);
  Config config = resolve({settings, diagnostics, config::Purpose::run}, options.world_size);
  note_foreign_file(text, diagnostics);
  diagnostics.throw_if_any();
  for (const config::Diagnostic& diagnostic : diagnostics.messages()) {
    auto& lines = diagnostic.severity == config::Severity::warning ? config.warnings : config.notes;
    lines.push_back(diagnostics.headline(diagnostic));
  }
  config.resolved = config::show_settings(settings);
  return config;
}

Config parse_config(std::string_view text, const std::string& origin, int world_size) {
  return parse_config(text, origin, LoadOptions{.world_size = world_size});
}

Config load_config(const std::filesystem::path& file, const LoadOptions& options) {
  return parse_config(config::read_config_file(file), file.string(), options);
}

Config load_config(const std::filesystem::path& file, int world_size) {
  return load_config(file, LoadOptions{.world_size = world_size});
}

}  // namespace zerorun
