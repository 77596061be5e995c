#include "launcher/commands/doctor_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

#include "base/error.h"
#include "doctor/host_report.h"
#include "doctor/links.h"
#include "launcher/captured_run.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/launch_options.h"
#include "launcher/hosts/node_job.h"
#include "launcher/machine.h"
#include "launcher/print.h"
#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

using nlohmann::ordered_json;
using std::chrono::seconds;

constexpr char kHelp[] = R"(Usage: zerorun doctor [--json] [OPTIONS]

Says what a bug report needs to know of this host: versions, GPUs, limits, memory, network. Each line is ok, a note, or a
problem with its remedy. Then starts ranks that try collectives and measure the links between hosts.

  --json    Print JSON

OPTIONS are those of `zerorun` (see zerorun --help), which say where the ranks run: --hostfile FILE, --include FILTER,
--num_gpus N, --node_rank N with --no_ssh on each host, ... Without them it is one rank for each GPU of this host, or
two on the CPU. --timeout is 30 seconds unless it is given.

Exit code: 0 if there is no problem, 1 if there is one, 2 for a mistake on this command line.
)";

constexpr char kProbe[] = "zerorun_probe";
constexpr size_t kShownLines = 20;

struct Request {
  bool json = false;
  std::vector<std::string> arguments;  // of the launcher that starts the probe
  LaunchOptions options;               // `arguments`, parsed
  int local_ranks = 1, hosts = 1;
};

std::string probe_file() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path() / kProbe;
}

bool is_given(const std::vector<std::string>& arguments, const std::string& name) {
  return std::ranges::any_of(arguments, [&](const std::string& argument) {
    return argument == name || argument.starts_with(name + "=");
  });
}

LaunchOptions parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> pointers = {"zerorun"};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  const auto parsed = parse_launch_options(static_cast<int>(pointers.size()), pointers.data());
  if (const auto* options = std::get_if<LaunchOptions>(&parsed)) return *options;
  throw UserError("doctor: --version is an option of zerorun alone");
}

Request parse_request(int argc, const char* const* argv) {
  Request request;
  std::vector<std::string>& arguments = request.arguments;
  arguments.assign(argv + 2, argv + argc);
  request.json = std::erase(arguments, "--json") > 0;
  const std::vector<std::string> program = {"--", probe_file()};
  std::vector<std::string> with_program = arguments;
  with_program.insert(with_program.end(), program.begin(), program.end());
  const LaunchOptions given = parse(with_program);
  if (given.command != std::vector<std::string>{program.back()})
    throw UserError("doctor runs a program of its own: leave out '" + given.command.front() +
                    "' (see zerorun doctor --help)");
  if (given.dry_run) throw UserError("doctor: --dry_run has no meaning here: leave it out");

  const int gpus = inspect_machine(given.device).gpus;
  arguments = with_doctor_defaults(std::move(arguments), given, gpus);
  arguments.insert(arguments.end(), program.begin(), program.end());
  request.options = parse(arguments);
  request.local_ranks = request.options.ranks_per_node.value_or(std::max(1, gpus));
  request.hosts = request.options.nodes.value_or(1);
  const std::string hostfile = choose_hostfile(request.options);
  if (!hostfile.empty()) request.hosts = static_cast<int>(read_hostfile(hostfile).size());
  return request;
}

/// The result of the job that runs the probe.
struct Trial {
  std::optional<doctor::JobReport> report;
  doctor::Findings findings;
  std::vector<std::string> output;  // the last lines on stderr, if it failed
  bool mistake = false;             // the user made a mistake: exit code 2
};

std::vector<std::string> last_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.size() > kShownLines) lines.erase(lines.begin(), lines.end() - kShownLines);
  return lines;
}

// Searches for kProbeMark within lines, because the launcher may have put "[rank 0] " in front of it.
std::optional<doctor::JobReport> find_report(const std::string& out) {
  const size_t start = out.find(doctor::kProbeMark);
  if (start == std::string::npos) return std::nullopt;
  const size_t from = start + std::string_view(doctor::kProbeMark).size();
  return doctor::job_report_from_json(ordered_json::parse(out.substr(from, out.find('\n', from) - from)));
}

Trial try_job(const Request& request) {
  Trial trial;
  if (!std::filesystem::exists(probe_file())) {
    trial.findings = {{doctor::Verdict::note, "collectives",
                       std::string(kProbe) + " is not beside zerorun: none was tried",
                       "build ZeroRun with LibTorch"}};
    return trial;
  }
  // The deadline (--timeout) applies separately to the start of the hosts, to connecting, to the collectives,
  // and to each round of links. There are about as many rounds as hosts, or as ranks if there is one host.
  const int members = request.hosts > 1 ? request.hosts : request.local_ranks;
  const double limit = request.options.timeout_seconds * (4 + members);
  const CapturedRun run =
      run_launcher(request.arguments, seconds(static_cast<int64_t>(std::ceil(std::min(limit, 1e6)))));
  if (succeeded(run.wait_status) && !run.timed_out) {
    trial.report = find_report(run.out);
    if (trial.report) {
      trial.findings = doctor::judge_job(*trial.report);
    } else {
      trial.findings = {
          {doctor::Verdict::ok, "collectives", "this host took part; the results are on the host of rank 0"}};
    }
    return trial;
  }
  trial.mistake = was_user_mistake(run.wait_status);
  trial.output = last_lines(run.err);
  const std::string how = run.timed_out ? "did not end in time" : describe_end(run.wait_status);
  trial.findings = {
      {doctor::Verdict::problem, "collectives", "the job that tries them " + how, "it says why below"}};
  return trial;
}

void print_trial(const Trial& trial, const std::string& own_host) {
  if (trial.report) {
    for (const doctor::Member& member : trial.report->members) {
      if (!member.report.empty() && member.host != own_host)
        print("host " + member.host + "\n" + to_text(member.report));
    }
  }
  print("ranks\n" + to_text(trial.findings));
  for (const std::string& line : trial.output) print("    " + line + "\n");
}

void print_findings(const std::string& host, const doctor::Findings& findings, const Trial& trial) {
  ordered_json json = {{"host", host}, {"findings", to_json(findings)}};
  json["job"] = trial.report ? to_json(*trial.report) : ordered_json::object();
  json["job"]["findings"] = to_json(trial.findings);
  json["job"]["output"] = trial.output;
  print_json(json);
}

}  // namespace

std::vector<std::string> with_doctor_defaults(std::vector<std::string> arguments, const LaunchOptions& given,
                                              int gpus) {
  const auto add = [&](const std::vector<std::string>& words) {
    arguments.insert(arguments.end(), words.begin(), words.end());
  };
  const bool says_where = !given.hostfile.empty() || !given.include.empty() || !given.exclude.empty() ||
                          given.ranks_per_node || given.nodes || given.node_rank || given.this_host_alone ||
                          !given.rdzv_endpoint.empty();
  if (!says_where) {
    add({"--standalone"});
    if (gpus == 0) add({"--num_gpus", "2"});
    if (gpus == 0 && given.device.empty()) add({"--device", "cpu"});
  }
  if (!is_given(arguments, "--timeout")) add({"--timeout", "30"});
  return arguments;
}

int run_doctor_command(int argc, const char* const* argv) {
  for (int i = 2; i < argc; ++i) {
    if (argv[i] != std::string_view("--help") && argv[i] != std::string_view("-h")) continue;
    print(kHelp);
    return 0;
  }
  const Request request = parse_request(argc, argv);
  const std::string host = this_hostname();
  const doctor::Findings findings =
      doctor::examine_host(request.local_ranks, request.local_ranks * request.hosts);
  if (!request.json) print("host " + host + "\n" + to_text(findings));
  const Trial trial = try_job(request);
  bool problem = doctor::has_problem(findings) || doctor::has_problem(trial.findings);
  if (trial.report) {
    for (const doctor::Member& member : trial.report->members)
      problem = problem || doctor::has_problem(member.report);
  }
  if (request.json) {
    print_findings(host, findings, trial);
  } else {
    print_trial(trial, host);
  }
  // A broken GPU is no mistake on the command line, although the job that tries it ends like after one.
  if (trial.mistake && !doctor::has_problem(findings)) return 2;
  return problem ? 1 : 0;
}

}  // namespace zerorun::launcher
