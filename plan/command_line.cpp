#include "plan/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr char kFooter[] =
    R"(Runs the engine on ranks and tensors that have no memory, and counts what it allocates and sends. Each parameter is taken to
be used once in forward and once in backward; activations, and what LibTorch and the program allocate, are not known.

Examples:
  zerorun plan --config ds_config.json --model Llama-3-70B --world 512 --hosts 64 --device cuda --memory 80G
  zerorun plan --config ds_config.json --params 7e9 --world 8 --json
  zerorun plan --config ds_config.json --params 7e9 --step-seconds 9 --endurance 600T    how long the drive lasts

Exit code: 0, or 1 if --memory is given and the model states do not fit into it, 2 for a mistake.)";

constexpr char kProgramFooter[] =
    R"(Runs the engine, and the program's forward and backward, on ranks and tensors that have no memory, and counts what they
allocate and send. The options before --plan are those of a run.

Example:
  PROGRAM --deepspeed ds_config.json ... --plan --world 16 --hosts 2 --device cuda --memory 80G

Exit code: 0, or 1 if --memory is given and a rank does not fit into it, 2 for a mistake.)";

constexpr int kMostRanks = 1 << 20;

// Sizes as they are written.
struct Sizes {
  std::string memory, endurance, device;
};

void add_options(CLI::App& app, PlanRequest& request, Sizes& sizes) {
  app.add_option("--world", request.world_size, "Ranks of the job (1)")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--hosts", request.hosts, "Hosts of the job (1)")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--device", sizes.device, "cpu (the default) or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--memory", sizes.memory, "Memory of each rank, such as 24G: what has to change to fit")
      ->type_name("SIZE");
  app.add_option("--step-seconds", request.step_seconds, "Seconds of an optimizer step, for bytes per day")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  app.add_option("--endurance", sizes.endurance, "Bytes that a host's drive endures, such as 600T")
      ->type_name("SIZE");
  app.add_flag("!--no-others", request.with_others, "Leave out other numbers of ranks, which take longer");
  app.add_flag("--json", request.json, "Print JSON");
}

// False if the help was asked for.
bool parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UserError("plan: " + std::string(error.what()) + " (see zerorun plan --help)");
  }
}

void complete(PlanRequest& request, const Sizes& sizes) {
  if (!sizes.memory.empty())
    request.memory = static_cast<int64_t>(bytes_in(sizes.memory, 1024, "plan: --memory"));
  if (!sizes.endurance.empty()) request.endurance = bytes_in(sizes.endurance, 1000, "plan: --endurance");
  request.on_gpu = sizes.device == "cuda";
}

}  // namespace

double bytes_in(const std::string& text, int base, const std::string& option) {
  char* rest = nullptr;
  double bytes = std::strtod(text.c_str(), &rest);
  const std::string unit = rest;
  const std::string letters = "KMGT";
  const size_t power = unit.empty() ? std::string::npos : letters.find(unit.front());
  const std::string suffix = power == std::string::npos ? unit : unit.substr(1);
  const bool is_right = rest != text.c_str() && std::isfinite(bytes) && bytes > 0 &&
                        (suffix.empty() || suffix == "B" || (suffix == "iB" && power != std::string::npos));
  if (!is_right)
    throw UserError(option + ": expected a size such as 24G, 80GiB or 600TB, found " + text +
                    " (see zerorun plan --help)");
  if (suffix == "B") base = 1000;
  if (suffix == "iB") base = 1024;
  if (power != std::string::npos) bytes *= std::pow(base, static_cast<double>(power + 1));
  if (bytes > 1e18)
    throw UserError(option + ": " + text + " is more than any memory or drive has: give at most 1e18 bytes");
  return bytes;
}

std::optional<PlanCommand> parse_plan_command(int argc, const char* const* argv) {
  PlanCommand command;
  Sizes sizes;
  std::string parameters;
  CLI::App app("Says what a training will take of memory and of the network, before it runs.",
               "zerorun plan");
  app.footer(kFooter);
  app.add_option("--config", command.config, "The ds_config.json")->type_name("FILE")->required();
  auto* model =
      app.add_option("--model", command.model, "Folder of safetensors files; only headers are read");
  model->type_name("DIR");
  app.add_option("--params", parameters, "Number of parameters, instead of a model")
      ->type_name("N")
      ->excludes(model);
  add_options(app, command.request, sizes);
  if (!parse(app, argc, argv)) return std::nullopt;
  if (command.model.empty() == parameters.empty())
    throw UserError("plan: give the model's folder (--model DIR) or its number of parameters (--params N)");
  if (!parameters.empty())
    command.parameters = static_cast<int64_t>(bytes_in(parameters, 1000, "plan: --params"));
  complete(command.request, sizes);
  return command;
}

int find_plan(int argc, const char* const* argv) {
  return static_cast<int>(
      std::find_if(argv, argv + argc, [](const char* each) { return each == std::string_view("--plan"); }) -
      argv);
}

std::optional<PlanRequest> parse_plan_request(int argc, const char* const* argv) {
  PlanRequest request;
  Sizes sizes;
  CLI::App app("Says what this training will take of memory and of the network, instead of running it.",
               "... --plan");
  app.footer(kProgramFooter);
  add_options(app, request, sizes);
  if (!parse(app, argc, argv)) return std::nullopt;
  complete(request, sizes);
  return request;
}

}  // namespace zerorun
