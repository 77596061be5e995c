#include "config/config.h"

#include "base/error.h"
#include "base/full_world.h"
#include "config/automatic.h"
#include "config/check.h"
#include "config/document.h"
#include "config/foreign_file.h"
#include "config/reader.h"
#include "config/sections.h"

namespace zerorun::config {
namespace {

/// Warns of changes that rounding to nearest loses: a bfloat16 number does not change by less than 1/512 of
/// itself.
void warn_of_lost_changes(const Resolution& resolution, const Config& config) {
  constexpr double least_share = 1.0 / 256;
  const PrecisionConfig& precision = config.precision;
  const auto* adam = config.optimizer ? std::get_if<AdamConfig>(&*config.optimizer) : nullptr;
  if (precision.moments == Dtype::bf16 && !precision.rounding_seed && adam && 1 - adam->beta2 < least_share) {
    resolution.warn("bf16.bf16_optimizer_states",
                    "rounded to nearest, exp_avg_sq stops changing with beta2 " + to_json(adam->beta2) +
                        ": set zerorun.stochastic_rounding to true, or beta2 to at most 0.996");
  }
  if (precision.moments_in_8_bits && adam && 1 - adam->beta2 < least_share) {
    resolution.warn("zerorun.optimizer_states_in_8_bits",
                    "with beta2 " + to_json(adam->beta2) +
                        " a step changes exp_avg_sq by less than the distance of two codes: most elements "
                        "of a block follow its largest one only; set beta2 to at most 0.996, such as 0.95");
  }
  if (precision.accumulation == Dtype::bf16 && config.batch.gradient_accumulation_steps > 64) {
    resolution.warn(
        "gradient_accumulation_steps",
        to_json(config.batch.gradient_accumulation_steps) +
            " gradients are added in bf16, which loses small ones: set data_types.grad_accum_dtype "
            "to \"fp32\"");
  }
}

BatchRanks batch_ranks(const Resolution& resolution, std::optional<int> world_size,
                       const std::optional<MeshSizes>& mesh) {
  BatchRanks ranks{.data = world_size, .has_mesh = mesh.has_value()};
  if (!world_size) return ranks;
  if (mesh) ranks.data = mesh->resolved(*world_size).data;
  // Tensor and pipeline sizes stay, so the full job has more data ranks only.
  if (const auto full = resolution.purpose == Purpose::run ? full_world_of(*world_size) : std::nullopt)
    ranks.full = *full / (*world_size / *ranks.data);
  return ranks;
}

/// Makes the Config from settings that have passed the checks against the key table. Applies the rules that
/// involve several keys.
Config resolve(const Resolution& resolution, std::optional<int> world_size,
               const std::optional<MeshSizes>& mesh = {}) {
  const Settings& settings = resolution.settings;
  for (const std::string_view section : {"optimizer", "scheduler"}) {
    const std::string type = std::string(section) + ".type";
    if (!settings.find(section) || settings.undecided(section) || settings.find(type)) continue;
    resolution.report(type, expected_of(row_of(type)), "nothing", advice_of(row_of(type)));
  }
  Config config;
  config.mesh = resolve_mesh(resolution, world_size, mesh);
  config.sum_group = resolve_sum_group(settings);
  config.pipeline = resolve_pipeline(resolution);
  config.recompute = resolve_recompute(resolution);
  config.batch = resolve_batch(resolution, batch_ranks(resolution, world_size, config.mesh));
  config.optimizer = resolve_optimizer(resolution);
  config.scheduler = resolve_scheduler(resolution);
  config.zero = resolve_zero(resolution);
  config.python = resolve_python(resolution);
  config.precision = resolve_precision(resolution);
  warn_of_lost_changes(resolution, config);
  if (config.optimizer) {
    if (const auto reason = reason_against_narrow_states(*config.optimizer, config.precision)) {
      resolution.report(
          config.precision.moments_in_8_bits        ? "zerorun.optimizer_states_in_8_bits"
          : config.precision.moments != Dtype::fp32 ? "bf16.bf16_optimizer_states"
                                                    : "bf16.bf16_master_weights_and_grads",
          std::string("false with the optimizer ") + name_of(*config.optimizer) + ", " + *reason, "true",
          config.precision.moments_in_8_bits ? "remove it, or use Adam, AdamW (without amsgrad) or Lion"
                                             : "remove it, or use another optimizer, such as AdamW");
    }
  }
  const bool in_files = config.zero.stage > 0 && config.zero.offload_optimizer.device == OffloadDevice::nvme;
  if (config.precision.moments_in_8_bits && in_files) {
    resolution.report("zerorun.optimizer_states_in_8_bits", "false with optimizer states in files", "true",
                      "remove it, or set zero_optimization.offload_optimizer.device to \"cpu\"");
  }
  resolve_gradients(resolution, config);
  config.steps_per_print = settings.get<int64_t>("steps_per_print");
  resolution.read("wall_clock_breakdown", config.wall_clock_breakdown);
  config.monitoring = resolve_monitoring(resolution);
  resolution.read("checkpoint.use_node_local_storage", config.node_local_checkpoints);
  resolution.read("zerorun.restart.partner", config.partner_generations);
  return config;
}

void report_foreign_file(const ForeignFile& foreign, Diagnostics& diagnostics) {
  diagnostics.report({{}, "", "a ds_config.json", std::string(foreign.name), std::string(foreign.remedy)});
}

// If the text has errors because it is another program's file, reports that as the first error.
void note_foreign_file(std::string_view text, Diagnostics& diagnostics) {
  if (!diagnostics.any(Severity::error)) return;
  const ForeignFile* foreign = recognise_foreign_file(text);
  if (foreign != nullptr) report_foreign_file(*foreign, diagnostics);
}

// Another program's file that is no JSON gets only the error that says so.
std::optional<Value> read(std::string_view text, Diagnostics& diagnostics) {
  const ForeignFile* foreign = recognise_foreign_file(text);
  if (foreign != nullptr && text[text.find_first_not_of(" \t\r\n")] != '{') {
    report_foreign_file(*foreign, diagnostics);
    return std::nullopt;
  }
  std::optional<Value> document = read_document(text, diagnostics);
  if (!document) note_foreign_file(text, diagnostics);
  return document;
}

}  // namespace

void Resolution::report(std::string_view path, std::string expected, std::string found,
                        std::string remedy) const {
  diagnostics.report({settings.place(path), settings.written(path), std::move(expected), std::move(found),
                      std::move(remedy)});
}

void Resolution::note(std::string_view path, std::string_view text) const {
  diagnostics.add_message(Severity::note, settings.place(path), settings.written(path), text);
}

void Resolution::warn(std::string_view path, std::string_view text) const {
  diagnostics.add_message(Severity::warning, settings.place(path), settings.written(path), text);
}

CheckedConfig check_config(std::string_view text, const std::string& origin, const CheckOptions& options) {
  CheckedConfig checked{{}, Diagnostics(origin, text)};
  const std::optional<Value> document = read(text, checked.diagnostics);
  if (!document) return checked;
  checked.settings = read_settings(
      *document, {.purpose = Purpose::check, .hidden_size = options.hidden_size, .compat = options.compat},
      checked.diagnostics);
  resolve({checked.settings, checked.diagnostics}, options.world_size);
  note_foreign_file(text, checked.diagnostics);
  return checked;
}

namespace {

Config parse(std::string_view text, const std::string& origin, const LoadOptions& options) {
  ZR_CHECK(options.world_size >= 1, "world size " + std::to_string(options.world_size));
  check_automatic_options(options);
  Diagnostics diagnostics(origin, text);
  const std::optional<Value> document = read(text, diagnostics);
  if (!document) diagnostics.throw_if_any();
  Settings settings = read_settings(
      *document,
      {.purpose = Purpose::run, .arguments = options.arguments, .hidden_size = options.hidden_size},
      diagnostics);
  Config config = resolve({settings, diagnostics, Purpose::run}, options.world_size, options.mesh);
  note_foreign_file(text, diagnostics);
  diagnostics.throw_if_any();
  for (const Diagnostic& diagnostic : diagnostics.messages()) {
    auto& lines = diagnostic.severity == Severity::warning ? config.warnings : config.notes;
    lines.push_back(diagnostics.headline(diagnostic));
  }
  config.resolved = show_settings(settings);
  return config;
}

}  // namespace
}  // namespace zerorun::config

namespace zerorun {

Config parse_config(std::string_view text, const std::string& origin, const LoadOptions& options) {
  return config::parse(text, origin, options);
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
