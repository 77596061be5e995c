#include "plan/request.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "config/check.h"
#include "config/config.h"
#include "config/document.h"

namespace zerorun {
namespace {

using nlohmann::ordered_json;

constexpr char kFooter[] =
    R"(Runs the engine on ranks and tensors that have no memory, and counts what it allocates and sends. Each parameter is taken to
be used once in forward and once in backward; activations, and what LibTorch and the program allocate, are not known.

Examples:
  zerorun plan --config ds_config.json --model Llama-3-70B --world 512 --hosts 64 --device cuda --memory 80G
  zerorun plan --config ds_config.json --params 7e9 --world 8 --json
  zerorun plan --config ds_config.json --params 7e9 --step-seconds 9 --endurance 600T    how long the drive lasts

Exit code: 0, or 1 if --memory is given and the model states do not fit into it, 2 for a mistake.)";

constexpr int kMostRanks = 1 << 20;

ordered_json as_json(const config::Value& value) {
  if (value.kind == config::ValueKind::object) {
    ordered_json object = ordered_json::object();
    for (const config::DocumentMember& member : value.members) object[member.key] = as_json(member.value);
    return object;
  }
  if (value.kind == config::ValueKind::array) {
    ordered_json array = ordered_json::array();
    for (const config::Value& item : value.items) array.push_back(as_json(item));
    return array;
  }
  return ordered_json::parse(value.literal);
}

// For "auto", as programs often have them; no size depends on them.
Arguments usual_arguments() {
  return {{"train_micro_batch_size_per_gpu", int64_t{1}},
          {"gradient_accumulation_steps", int64_t{1}},
          {"gradient_clipping", 1.0},
          {"optimizer.params.lr", 1e-4},
          {"optimizer.params.betas", std::vector<double>{0.9, 0.999}},
          {"optimizer.params.eps", 1e-8},
          {"optimizer.params.weight_decay", 0.0},
          {"scheduler.params.warmup_min_lr", 0.0},
          {"scheduler.params.warmup_max_lr", 1e-4},
          {"scheduler.params.warmup_num_steps", int64_t{1}},
          {"scheduler.params.total_num_steps", int64_t{1000}}};
}

void add_options(CLI::App& app, PlanRequest& request, std::string& parameters, std::string& device,
                 std::string& memory, std::string& endurance) {
  app.add_option("--config", request.config, "The ds_config.json")->type_name("FILE")->required();
  auto* model =
      app.add_option("--model", request.model, "Folder of safetensors files; only headers are read");
  model->type_name("DIR");
  app.add_option("--params", parameters, "Number of parameters, instead of a model")
      ->type_name("N")
      ->excludes(model);
  app.add_option("--world", request.world_size, "Ranks of the job (1)")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--hosts", request.hosts, "Hosts of the job (1)")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--device", device, "cpu (the default) or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--memory", memory, "Memory of each rank, such as 24G: what has to change to fit")
      ->type_name("SIZE");
  app.add_option("--step-seconds", request.step_seconds, "Seconds of an optimizer step, for bytes per day")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  app.add_option("--endurance", endurance, "Bytes that a host's drive endures, such as 600T")
      ->type_name("SIZE");
  app.add_flag("!--no-others", request.with_others, "Leave out other numbers of ranks, which take longer");
  app.add_flag("--json", request.json, "Print JSON");
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

std::optional<PlanRequest> parse_plan_request(int argc, const char* const* argv) {
  PlanRequest request;
  std::string parameters, device, memory, endurance;
  CLI::App app("Says what a training will take of memory and of the network, before it runs.",
               "zerorun plan");
  app.footer(kFooter);
  add_options(app, request, parameters, device, memory, endurance);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UserError("plan: " + std::string(error.what()) + " (see zerorun plan --help)");
  }
  if (request.model.empty() == parameters.empty())
    throw UserError("plan: give the model's folder (--model DIR) or its number of parameters (--params N)");
  if (!parameters.empty())
    request.parameters = static_cast<int64_t>(bytes_in(parameters, 1000, "plan: --params"));
  if (!memory.empty()) request.memory = static_cast<int64_t>(bytes_in(memory, 1024, "plan: --memory"));
  if (!endurance.empty()) request.endurance = bytes_in(endurance, 1000, "plan: --endurance");
  if (request.endurance && !request.step_seconds)
    throw UserError("plan: --endurance needs the time of a step: give --step-seconds S too");
  if (request.world_size % request.hosts != 0)
    throw UserError("plan: --world " + std::to_string(request.world_size) + " ranks do not divide among " +
                    std::to_string(request.hosts) + " hosts (--hosts): give a multiple");
  request.on_gpu = device == "cuda";
  return request;
}

ordered_json as_json(const std::string& text, const std::string& origin) {
  config::Diagnostics diagnostics(origin, text);
  const auto document = config::read_document(text, diagnostics);
  diagnostics.throw_if_any();
  return as_json(*document);
}

Config planned_config(const std::string& text, const std::string& origin, int world_size,
                      std::optional<int64_t> hidden_size) {
  LoadOptions options;
  options.world_size = world_size;
  options.arguments = usual_arguments();
  options.hidden_size = hidden_size;
  Config config = parse_config(text, origin, options);
  if (config.mesh && config.mesh->pipeline > 1) {
    throw UserError(
        origin +
        ": a plan knows no pipeline stages: plan one stage's ranks with its own parameters, without "
        "zerorun.mesh.pipeline and pipeline.stages");
  }
  if (!config.optimizer) config.optimizer = AdamConfig();
  return config;
}

}  // namespace zerorun
