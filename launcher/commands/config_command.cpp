#include "launcher/commands/config_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "config/check.h"
#include "config/compare.h"
#include "config/reference.h"
#include "config/schema.h"
#include "launcher/commands/command_line.h"
#include "launcher/print.h"

namespace zerorun::launcher {
namespace {

constexpr int kClean = 0;
constexpr int kDiffers = 1;
constexpr int kWarnings = 1;
constexpr int kErrors = 2;

struct ConfigArguments {
  std::vector<std::string> files;
  std::optional<int> world_size;
  std::optional<int64_t> hidden_size;
  bool compat = false;
  bool werror = false;
  bool quiet = false;
  bool json = false;

  config::CheckOptions check_options() const {
    return {.world_size = world_size, .hidden_size = hidden_size, .compat = compat};
  }
};

struct Tally {
  int errors = 0;
  int warnings = 0;
  int notes = 0;

  void add(config::Severity severity, int count = 1) {
    (severity == config::Severity::error     ? errors
     : severity == config::Severity::warning ? warnings
                                             : notes) += count;
  }
};

std::string origin_name(const std::string& file) {
  return file == "-" ? "stdin" : file;
}

config::CheckedConfig check_file(const std::string& file, const ConfigArguments& arguments) {
  return config::check_config(config::read_config_file(file), origin_name(file), arguments.check_options());
}

std::string counted(int number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

nlohmann::ordered_json as_json(const std::string& file, const config::Diagnostic& diagnostic) {
  const config::Mistake& mistake = diagnostic.mistake;
  nlohmann::ordered_json json{{"file", file},
                              {"line", mistake.at.line},
                              {"column", mistake.at.column},
                              {"severity", name_of(diagnostic.severity)},
                              {"path", mistake.path},
                              {"message", diagnostic.text}};
  if (!mistake.expected.empty()) {
    json["expected"] = mistake.expected;
    json["found"] = mistake.found;
    json["remedy"] = mistake.remedy;
  }
  return json;
}

int check(const ConfigArguments& arguments) {
  Tally total;
  auto list = nlohmann::ordered_json::array();
  for (const std::string& file : arguments.files) {
    std::string text;
    try {
      text = config::read_config_file(file);
    } catch (const UserError& error) {  // go on with the other files
      std::fprintf(stderr, "zerorun: %s\n", printable(error.what(), "\n\t").c_str());
      total.add(config::Severity::error);
      list.push_back({{"file", file}, {"severity", "error"}, {"path", ""}, {"message", error.what()}});
      continue;
    }
    Tally tally;
    std::string report;
    const config::CheckedConfig checked =
        config::check_config(text, origin_name(file), arguments.check_options());
    for (const config::Diagnostic& diagnostic : checked.diagnostics.messages()) {
      tally.add(diagnostic.severity);
      total.add(diagnostic.severity);
      if (arguments.json) list.push_back(as_json(origin_name(file), diagnostic));
      if (arguments.quiet && diagnostic.severity == config::Severity::note) continue;
      report += checked.diagnostics.render(diagnostic) + "\n";
    }
    for (const config::Severity severity :
         {config::Severity::error, config::Severity::warning, config::Severity::note}) {
      const auto left_out = static_cast<int>(checked.diagnostics.left_out(severity));
      if (left_out == 0) continue;
      tally.add(severity, left_out);
      total.add(severity, left_out);
      report += checked.diagnostics.left_out_line(severity) + "\n";
    }
    report += origin_name(file) + ": " + counted(tally.errors, "error") + ", " +
              counted(tally.warnings, "warning") + ", " + counted(tally.notes, "note") + "\n";
    if (!arguments.json) print(report);
  }
  if (arguments.json) {
    print_json({{"errors", total.errors},
                {"warnings", total.warnings},
                {"notes", total.notes},
                {"messages", std::move(list)}});
  }
  if (total.errors > 0) return kErrors;
  return arguments.werror && total.warnings > 0 ? kWarnings : kClean;
}

/// The configuration; absent if it has errors, which are printed.
std::optional<config::CheckedConfig> accepted(const std::string& file, const ConfigArguments& arguments) {
  config::CheckedConfig checked = check_file(file, arguments);
  if (!checked.refused()) return checked;
  for (const config::Diagnostic& diagnostic : checked.diagnostics.messages()) {
    if (diagnostic.severity != config::Severity::error) continue;
    std::fprintf(stderr, "%s\n", printable(checked.diagnostics.render(diagnostic), "\n\t").c_str());
  }
  return std::nullopt;
}

int show(const ConfigArguments& arguments) {
  const auto checked = accepted(arguments.files.front(), arguments);
  if (!checked) return kErrors;
  print(config::show_settings(checked->settings));
  return kClean;
}

std::string side(const std::string& file, const std::string& value, const std::string& origin) {
  return value.empty() ? "  " + file + ": does not apply\n"
                       : "  " + file + ": " + value + " (" + origin + ")\n";
}

int diff_configs(const ConfigArguments& arguments) {
  const std::string& first_file = arguments.files.at(0);
  const std::string& second_file = arguments.files.at(1);
  const auto first = accepted(first_file, arguments);
  const auto second = accepted(second_file, arguments);
  if (!first || !second) return kErrors;
  const auto differences = config::compare_settings(first->settings, second->settings);
  if (arguments.json) {
    auto list = nlohmann::ordered_json::array();
    const auto value = [](const std::string& text) {
      return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(text);
    };
    for (const config::Difference& difference : differences) {
      list.push_back({{"path", difference.path},
                      {"first", value(difference.first)},
                      {"second", value(difference.second)}});
    }
    print_json({{"differences", std::move(list)}});
  } else {
    for (const config::Difference& difference : differences) {
      print(difference.path + "\n" +
            side(origin_name(first_file), difference.first, difference.first_origin) +
            side(origin_name(second_file), difference.second, difference.second_origin));
    }
    if (differences.empty()) print("no difference in meaning\n");
  }
  return differences.empty() ? kClean : kDiffers;
}

constexpr char kConfigFooter[] = R"(Examples:
  zerorun config check ds_config.json                      every mistake, with its line and what to write instead
  zerorun config check --world 8 --model-hidden 4096 *.json
  zerorun config show ds_config.json                       every setting, with where its value comes from
  zerorun config diff old.json new.json                    what a run would do differently
  zerorun config schema > ds_config.schema.json            JSON Schema, for editors

Exit code: check: 0 no errors, 1 warnings with --werror, 2 errors; diff: 0 alike, 1 different, 2 errors; show: 0, or 2
for errors; 2 for a mistake on this command line.)";

void add_common(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("--world", arguments.world_size, "Ranks of the run: multiplies the batch sizes")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--model-hidden", arguments.hidden_size,
                  "Hidden size of the model, from which \"auto\" makes bucket sizes")
      ->type_name("H")
      ->check(CLI::Range(1, 1 << 20));
  command.add_flag("--compat", arguments.compat,
                   "Leftovers that older DeepSpeed took without a word are warnings, not errors");
}

}  // namespace

int run_config_command(int argc, const char* const* argv) {
  ConfigArguments arguments;
  CLI::App app("Looks at ds_config.json files without running anything.", "zerorun config");
  app.footer(kConfigFooter);
  app.require_subcommand(1);
  CLI::App* check_command = app.add_subcommand("check", "Tell every mistake in the files; - is stdin");
  check_command->add_option("FILE", arguments.files, "Configurations")->required();
  add_common(*check_command, arguments);
  check_command->add_flag("--werror", arguments.werror, "Warnings count as failure: exit code 1");
  check_command->add_flag("-q,--quiet", arguments.quiet, "Leave notes out");
  check_command->add_flag("--json", arguments.json, "Print JSON");
  CLI::App* show_command = app.add_subcommand("show", "Print every setting with where it comes from");
  show_command->add_option("FILE", arguments.files, "Configuration")->required()->expected(1);
  add_common(*show_command, arguments);
  CLI::App* diff_command = app.add_subcommand("diff", "Tell differences in meaning");
  diff_command->add_option("FILES", arguments.files, "Two configurations")->required()->expected(2);
  add_common(*diff_command, arguments);
  diff_command->add_flag("--json", arguments.json, "Print JSON");
  CLI::App* schema_command = app.add_subcommand("schema", "Print the JSON Schema of configurations");
  CLI::App* reference_command = app.add_subcommand("reference", "Print the reference page of all keys");
  if (!parse_or_help(app, argc, argv)) return kClean;
  if (check_command->parsed()) return check(arguments);
  if (show_command->parsed()) return show(arguments);
  if (diff_command->parsed()) return diff_configs(arguments);
  if (schema_command->parsed()) print(config::config_schema());
  if (reference_command->parsed()) print(config::config_reference());
  return kClean;
}

}  // namespace zerorun::launcher
