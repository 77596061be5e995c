// A libFuzzer target whose input is the text of a configuration (`scripts/fuzz config`). Each function named
// must_* checks one property that holds for any text. World size, hidden size and the reader's leniency are
// derived from a hash of the text, so that a file of the corpus is a plain configuration.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/fnv1a.h"
#include "config/check.h"
#include "config/compare.h"
#include "config/config.h"
#include "config/key_table.h"
#include "optim/hyperparameters.h"

namespace zerorun {
using namespace config;
namespace {

constexpr std::string_view origin = "fuzzed";

[[noreturn]] void fail(std::string_view what, std::string_view text, const std::string& detail = "") {
  std::fprintf(stderr, "BROKEN: %s\n%s\n---- the text:\n%.*s\n----\n", std::string(what).c_str(),
               detail.c_str(), static_cast<int>(text.size()), text.data());
  std::abort();
}

uint64_t hash_of(std::string_view text) {
  const uint64_t hash = fnv1a(kFnv1aStart, text);
  return hash ^ (hash >> 32);
}

CheckOptions options_for(std::string_view text) {
  const uint64_t hash = hash_of(text);
  CheckOptions options;
  if (hash & 1) options.world_size = 1 << (hash >> 1 & 3);
  if (hash & 8) options.hidden_size = static_cast<int64_t>(hash >> 8 & 0xfffff) + 1;
  options.compat = (hash & 16) != 0;
  return options;
}

std::string told(const CheckedConfig& checked) {
  std::string all;
  for (const Diagnostic& diagnostic : checked.diagnostics.messages())
    all += checked.diagnostics.headline(diagnostic) + "\n";
  return all;
}

/// Computes the position of `offset` without the reader. Lines end with LF, CR LF or CR. Columns count
/// characters, not bytes.
Position place_of(std::string_view text, std::size_t offset) {
  Position place{offset, 1, 1};
  for (std::size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < offset; ++i) {
    const bool splits_crlf = text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    if (text[i] == '\n' || (text[i] == '\r' && !splits_crlf)) {
      ++place.line;
      place.column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++place.column;
    }
  }
  return place;
}

/// Messages are in file order, point into the file, and have no control characters.
void must_point_into(std::string_view text, const CheckedConfig& checked) {
  std::size_t last = 0;
  for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
    const Position& at = diagnostic.at();
    const std::string shown = checked.diagnostics.render(diagnostic);
    if (at.offset > text.size()) fail("a diagnostic lies behind the end", text, shown);
    if (at.offset < last) fail("messages are out of order", text, shown);
    last = at.offset;
    const Position expected = place_of(text, at.offset);
    if (at.line != expected.line || at.column != expected.column)
      fail("line or column is wrong", text, shown);
    if (diagnostic.text.empty() || !shown.starts_with(origin)) fail("a diagnostic says nothing", text, shown);
    for (const unsigned char c : shown) {
      if ((c < 0x20 && c != '\n') || c == 0x7f) fail("a diagnostic holds a control character", text, shown);
    }
  }
}

int count_warnings(const CheckedConfig& checked) {
  return static_cast<int>(
      std::ranges::count(checked.diagnostics.messages(), Severity::warning, &Diagnostic::severity));
}

/// For an accepted configuration, the output of show_settings() is accepted too, has the same meaning, and
/// gets no more warnings.
void must_show_the_same(std::string_view text, const CheckedConfig& checked, const CheckOptions& options) {
  const std::string shown = show_settings(checked.settings);
  const CheckedConfig again = check_config(shown, std::string(origin), options);
  if (again.refused() || count_warnings(again) > count_warnings(checked)) {
    fail("what is shown is no clean configuration", text, shown + told(again));
  }
  for (const Difference& difference : compare_settings(checked.settings, again.settings)) {
    fail("what is shown means something else", text,
         difference.path + ": " + difference.first + " became " + difference.second + "\n" + shown);
  }
}

bool same_run(const Config& a, const Config& b) {
  const auto batch = [](const Config& c) {
    return std::tuple(c.batch.train_batch_size, c.batch.micro_batch_size_per_gpu,
                      c.batch.gradient_accumulation_steps);
  };
  const auto zero = [](const Config& c) {
    const ZeroConfig& z = c.zero;
    return std::tuple(z.stage, z.reduce_bucket_size, z.allgather_bucket_size, z.overlap_comm);
  };
  const auto optimizer = [](const Config& c) {
    std::optional<OptimizerConfig> config = c.optimizer;
    auto* adam = config ? std::get_if<AdamConfig>(&*config) : nullptr;
    if (adam) adam->silently_decoupled = false;  // differs, since the resolved configuration has adam_w_mode
    return config;
  };
  const auto stage3 = [](const Config& c) {
    const ZeroConfig& z = c.zero;
    return z.stage < 3 ? std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>()
                       : std::tuple(z.max_live_parameters, z.max_reuse_distance, z.prefetch_bucket_size,
                                    z.param_persistence_threshold, z.model_persistence_threshold);
  };
  const auto precision = [](const Config& c) {
    const PrecisionConfig& p = c.precision;
    return std::tuple(p.training, p.communication, p.accumulation, p.buffers, p.master_from_fp32,
                      p.auto_cast);
  };
  // A WarmupLR without warmup_max_lr uses the optimizer's rate. The resolved configuration states that rate.
  const auto scheduler = [](const Config& c) {
    std::optional<SchedulerConfig> schedule = c.scheduler;
    auto* warmup = schedule ? std::get_if<WarmupLr>(&*schedule) : nullptr;
    if (warmup && !warmup->max_lr && c.optimizer) warmup->max_lr = lr_of(*c.optimizer);
    return schedule;
  };
  const auto loss_scale = [](const Config& c) {
    const LossScaleConfig& s = c.precision.loss_scale;
    return std::tuple(s.fixed, s.initial, s.window, s.hysteresis, s.consecutive_hysteresis, s.minimum);
  };
  return batch(a) == batch(b) && precision(a) == precision(b) && loss_scale(a) == loss_scale(b) &&
         zero(a) == zero(b) && stage3(a) == stage3(b) && optimizer(a) == optimizer(b) &&
         scheduler(a) == scheduler(b) && a.gradient_clipping == b.gradient_clipping &&
         a.steps_per_print == b.steps_per_print && a.wall_clock_breakdown == b.wall_clock_breakdown &&
         a.prescale_gradients == b.prescale_gradients &&
         a.gradient_predivide_factor == b.gradient_predivide_factor &&
         a.average_gradients == b.average_gradients;
}

/// Returns a value for every key whose "auto" the program must fill in.
Arguments arguments_for(int world_size, bool fp16) {
  constexpr int64_t micro_batch = 2;
  constexpr int64_t steps = 3;
  Arguments arguments;
  for (const KeyFact* fact : key_facts()) {
    if (fact->automatic != Automatic::program) continue;
    const std::string path(fact->path);
    if (fact->type == KeyType::integer || fact->type == KeyType::size) arguments[path] = int64_t{10};
    if (fact->type == KeyType::number) arguments[path] = 0.5;
    if (fact->type == KeyType::boolean) arguments[path] = false;
    if (fact->type == KeyType::number_list) arguments[path] = std::vector<double>(fact->length, 0.25);
  }
  arguments["fp16.enabled"] = fp16;
  arguments["train_batch_size"] = micro_batch * steps * world_size;
  arguments["train_micro_batch_size_per_gpu"] = micro_batch;
  arguments["gradient_accumulation_steps"] = steps;
  return arguments;
}

/// A configuration that a run accepts is also accepted by a check, and the run's resolved configuration
/// starts the same run.
void must_run_as_checked(std::string_view text, const CheckOptions& options) {
  LoadOptions load{.world_size = options.world_size.value_or(1), .hidden_size = options.hidden_size};
  if (!options.compat) load.arguments = arguments_for(load.world_size, options.hidden_size.has_value());
  Config config;
  try {
    config = parse_config(text, std::string(origin), load);
  } catch (const UserError& error) {
    if (std::string_view(error.what()).empty()) fail("a refusal says nothing", text);
    return;
  }
  const CheckedConfig checked = check_config(
      text, std::string(origin), {.world_size = load.world_size, .hidden_size = options.hidden_size});
  if (checked.refused()) fail("a run takes what a check refuses", text, told(checked));
  try {
    if (same_run(config, parse_config(config.resolved, std::string(origin), load))) return;
  } catch (const UserError& error) {
    fail("a run's resolved configuration is refused", text, config.resolved + error.what());
  }
  fail("a run's resolved configuration starts another run", text, config.resolved);
}

void check_text(std::string_view text) {
  const CheckedConfig plain = check_config(text, std::string(origin));
  must_point_into(text, plain);
  if (!plain.refused()) must_show_the_same(text, plain, {});
  const CheckOptions options = options_for(text);
  const CheckedConfig other = check_config(text, std::string(origin), options);
  must_point_into(text, other);
  if (!other.refused()) must_show_the_same(text, other, options);
  if (!plain.refused() && other.refused() && !options.world_size) {
    fail("without batch sizes to multiply, options make a difference", text, told(other));
  }
  must_run_as_checked(text, options);
}

}  // namespace
}  // namespace zerorun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zerorun::check_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
