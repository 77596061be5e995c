#include "launcher/hosts/launch_options.h"

// CLI::App: parses the options, prints their help, and separates the options of the program
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "launcher/hosts/argparse_words.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/node_order.h"
#include "launcher/hosts/option_checks.h"

namespace zerorun::launcher {
namespace {

constexpr double kLongestTimeout = 1e6;
constexpr int kMostSteps = 1'000'000;  // of --hold_every

constexpr char kDescription[] =
    "Runs PROGRAM as the ranks of one job. Arguments after PROGRAM are passed to it unchanged.";

constexpr char kExamples[] = R"(Examples:
  zerorun --num_gpus 2 build/bin/gpt2 --deepspeed ds_config.json --data FILE
  zerorun --include localhost:0,2 build/bin/gpt2 --deepspeed ds_config.json --data FILE
  zerorun --num_gpus 4 --timeout 60 --grace 10 build/bin/mlp --deepspeed ds_config.json
  zerorun --num_gpus 2 --device cpu build/bin/mlp --deepspeed ds_config.json
  zerorun --hostfile hosts --include worker-0@worker-1:0,2 build/bin/mlp --deepspeed ds_config.json
                                                  on other hosts, through ssh
  zerorun --hostfile hosts --launcher slurm build/bin/mlp --deepspeed ds_config.json
  zerorun --hostfile hosts --no_ssh --node_rank 0 build/bin/mlp --deepspeed ds_config.json
                                                  on the first host; on the second with --node_rank 1
  zerorun --hostfile hosts --exclude worker-1:3 --node_rank 0 --dry_run build/bin/mlp
                                                  print what would run where
  zerorun config --help                           check, show and compare configurations
  zerorun checkpoint --help                       list, verify, compare, prune, export and import checkpoints
  zerorun doctor --help                           look at this machine and the links between hosts
  zerorun plan --help                             memory and traffic of a training, before it runs
  zerorun diff --help                             the first step at which two runs part
  zerorun report --help                           a page that shows a run, or two

A hostfile has a line `HOST slots=N` for each host. A filter is HOST[:SLOT,...][@HOST...]; a host without slots means all
of them. Ranks are numbered host by host in the hostfile's order, by rising slot. A PROGRAM that ends in .py, or the name
of a module after --module, is run by the python3 of the virtual environment in which zerorun is installed, else by the
python3 in PATH; --no_python runs it as it is.

On a machine with GPUs every rank needs one that works, otherwise no rank starts; the CPU is used if --device cpu says so
or CUDA_VISIBLE_DEVICES is empty. Ranks may share GPUs over NCCL 2.30 or later, with NCCL_MULTI_RANK_GPU_ENABLE=1.

Each rank finds its place in RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, LOCAL_SIZE, CROSS_RANK (the number of its
host), CROSS_SIZE (the number of hosts), MASTER_ADDR, MASTER_PORT, ZERORUN_JOB, ZERORUN_TIMEOUT, with --device
ZERORUN_DEVICE, with --comm ZERORUN_COMM, after a restart ZERORUN_RESTARTS (how many there were) and, on machines with
GPUs or with --include or --exclude, CUDA_VISIBLE_DEVICES. ZERORUN_JOB is this job's secret; with --node_rank set it to the same text on each host, otherwise
the job is known by its port only. The port is reserved from the start, and rank 0 finds its socket in
ZERORUN_LISTEN_FD.
NCCL_LAUNCH_ORDER_IMPLICIT and NCCL_MULTI_RANK_GPU_ENABLE are set to 1 unless they are set already.
OMP_NUM_THREADS is set to the cores divided by the host's ranks unless it is set already, where the cgroup's CPU quota
may make the cores fewer. Ranks read nothing from stdin. SIGINT, SIGTERM and SIGHUP end the job, unless they were ignored
when it started (nohup, background of a shell script).

Exit code: 0 if all ranks ended with 0; else that of the first rank to fail (128 + signal if a signal killed it);
128 + signal if a signal ended the job; 2 for a mistake on this command line.)";

// Options of DeepSpeed's launcher and of torchrun that this launcher does not have. Their error message says
// so. torchrun takes its names with - as well as with _.
constexpr std::array<std::string_view, 4> kOfDeepSpeed = {"--elastic_training", "--min_elastic_nodes",
                                                          "--max_elastic_nodes", "--autotuning"};
constexpr std::array<std::string_view, 11> kOfTorchrun = {"--rdzv_conf",
                                                          "--role",
                                                          "--run_path",
                                                          "--logs_specs",
                                                          "--numa_binding",
                                                          "--event_log_handler",
                                                          "--signals_to_handle",
                                                          "--virtual_local_rank",
                                                          "--shutdown_timeout",
                                                          "--duplicate_stdout_filters",
                                                          "--duplicate_stderr_filters"};

[[noreturn]] void refuse_option(const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::string spelled = name;
  std::replace(spelled.begin() + 2, spelled.end(), '-', '_');
  const bool of_torchrun = std::ranges::count(kOfTorchrun, spelled) > 0;
  if (of_torchrun || std::ranges::count(kOfDeepSpeed, spelled) > 0) {
    throw UserError(name + ": " + (of_torchrun ? "torchrun" : "DeepSpeed's launcher") +
                    " has this option, but zerorun does not support it: leave it out "
                    "(zerorun --help lists the options)");
  }
  throw UserError(name +
                  ": unknown option before the program's name: options of the program go after it (zerorun "
                  "--help lists ours)");
}

class UsageFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: zerorun [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM...]\n";
  }
};

std::vector<std::string> command_of(const CLI::App& app) {
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command.front() == "--") {
    command.erase(command.begin());
  } else if (!command.empty() && command.front().starts_with("-")) {
    refuse_option(command.front());
  }
  if (command.empty()) {
    throw UserError("no program given: write zerorun --num_gpus 2 PROGRAM ARGUMENTS... (see zerorun --help)");
  }
  return command;
}

// Options that say where the ranks run.
struct PlacementValues {
  bool no_ssh = false, no_local_rank = false, no_ssh_check = false, standalone = false;
  // Numbers are texts here: the parser that checks them reads them too.
  std::string ranks, nodes, node_rank, master_port, ssh_port, restarts, hold_every;
  std::string launcher, launcher_args, rdzv_backend, local_address, ignored;
};

// Options that say what the launcher prints, and where.
struct OutputValues {
  std::string redirects, tee, printed, level;
};

void add_placement_options(CLI::App& app, LaunchOptions& options, PlacementValues& values) {
  app.add_option("-H,--hostfile", options.hostfile,
                 "File with the hosts that the job may use; without it this machine")
      ->type_name("FILE");
  CLI::Option* include =
      app.add_option("-i,--include", options.include, "Slots to use, one rank each: localhost:0,2")
          ->type_name("FILTER");
  CLI::Option* exclude =
      app.add_option("-e,--exclude", options.exclude, "Slots to leave out")->type_name("FILTER");
  CLI::Option* ranks =
      app.add_option(
             "--num_gpus,--num_accelerators,--nproc_per_node,--nproc-per-node", values.ranks,
             "Ranks on each host: a number, or as many as it has GPUs (gpu), processors (cpu), or GPUs and "
             "without any processors (auto); without it one per slot, or one where there is no GPU")
          ->type_name("N")
          ->check(checks::count_of_ranks({"gpu", "cpu", "auto"}));
  CLI::Option* nodes =
      app.add_option("--num_nodes,--nnodes", values.nodes,
                     "Hosts: the first N of the hostfile; without a hostfile 1 unless it is given")
          ->type_name("N")
          ->transform(checks::count_of_hosts());
  include->excludes(exclude)->excludes(ranks)->excludes(nodes);
  exclude->excludes(ranks)->excludes(nodes);
  CLI::Option* node_rank =
      app.add_option("--node_rank,--node-rank", values.node_rank,
                     "Number of this host in a job whose launcher is started on each host")
          ->type_name("N")
          ->check(checks::whole_number(0, kMostRanks - 1));
  app.add_flag("--no_ssh", values.no_ssh, "Start ranks on this host only; needs --node_rank")
      ->needs(node_rank);
  app.add_option(
         "--rdzv_endpoint,--rdzv-endpoint", options.rdzv_endpoint,
         "Where the launchers of all hosts meet; without --node_rank they number the hosts themselves")
      ->type_name("HOST[:PORT]");
  app.add_option("--rdzv_id,--rdzv-id", options.rdzv_id, "Name of the job, the same for all its launchers")
      ->type_name("TEXT");
  app.add_option("--rdzv_backend,--rdzv-backend", values.rdzv_backend, "No effect: c10d or static")
      ->type_name("NAME")
      ->check(checks::one_of({"c10d", "static"}));
  app.add_flag("--standalone", values.standalone,
               "This host and a free port, as by default; /job/hostfile and --rdzv_endpoint have no effect");
  app.add_option("--master_addr,--master-addr", options.master_addr,
                 "Address where the ranks meet; without it rank 0's host")
      ->type_name("ADDRESS");
  app.add_option(
         "--master_port,--master-port", values.master_port,
         "Port where the ranks meet; without it a free one, with --node_rank " + std::to_string(kDefaultPort))
      ->type_name("PORT")
      ->check(checks::whole_number(1, kHighestPort));
  app.add_option("--local_addr,--local-addr", values.local_address,
                 "No effect on one host, where alone it is accepted")
      ->type_name("ADDRESS");
  CLI::Option* restarts =
      app.add_option("--max_restarts,--max-restarts", values.restarts,
                     "After a failure start all ranks again, at most N times (on one host); without it 0")
          ->type_name("N")
          ->check(checks::whole_number(0, kMostRanks));
  app.add_option("--hold_every,--hold-every", values.hold_every,
                 "Hold the state of each Nth optimizer step in memory, for load_newest() after a restart")
      ->type_name("N")
      ->check(checks::whole_number(1, kMostSteps))
      ->needs(restarts);
  app.add_option("--monitor_interval,--monitor-interval,--start_method,--start-method", values.ignored,
                 "No effect: the launcher sees at once that a rank has ended, and starts programs")
      ->type_name("VALUE");
}

void add_remote_options(CLI::App& app, LaunchOptions& options, PlacementValues& values) {
  app.add_option("--launcher", values.launcher, "What starts the ranks on the hosts; without it ssh")
      ->type_name("ssh|pdsh|openmpi|mpich|slurm");
  app.add_option("--launcher_args", values.launcher_args, "Options for that program, as one string")
      ->type_name("TEXT");
  app.add_option("--ssh_port", values.ssh_port, "Port of the hosts' sshd")
      ->type_name("PORT")
      ->check(checks::whole_number(1, kHighestPort));
  app.add_flag("--force_multi", options.force_multi, "Start the ranks through --launcher even on one host");
  app.add_flag("--no_ssh_check", values.no_ssh_check, "No effect: hosts are not checked in advance");
  app.add_option("--venv_script", options.venv_script,
                 "Script that bash reads on each host before the program")
      ->type_name("FILE");
}

void add_output_options(CLI::App& app, LaunchOptions& options, OutputValues& values) {
  CLI::Option* each = app.add_option("--enable_each_rank_log", options.logs.one_file_folder,
                                     "Write the output of each rank to a file in DIR instead of printing it")
                          ->type_name("DIR");
  CLI::Option* folder = app.add_option("--log_dir,--log-dir", options.logs.folder,
                                       "Folder for the files of --redirects and --tee")
                            ->type_name("DIR")
                            ->excludes(each);
  const char* streams = "0 none, 1 stdout, 2 stderr, 3 both, of all local ranks, or 0:1,1:3 of some";
  app.add_option("-r,--redirects", values.redirects, std::string("Write into files: ") + streams)
      ->type_name("STREAMS")
      ->needs(folder);
  app.add_option("-t,--tee", values.tee, "The same, and print")->type_name("STREAMS")->needs(folder);
  app.add_option("--local_ranks_filter,--local-ranks-filter", values.printed,
                 "Print only these local ranks: 0,1")
      ->type_name("LIST");
  app.add_flag("--save_pid", options.save_pid,
               "Write the launcher's process number into /tmp/NUMBER.deepspeed");
  app.add_flag("-q,--quiet", options.quiet, "Print only the output of ranks, and failures");
  app.add_option("--log_level", values.level,
                 "debug: print the commands that start ranks; warning, error, critical: the same as --quiet")
      ->type_name("debug|info|warning|error|critical");
  CLI::Option* timeline =
      app.add_option("--timeline", options.timeline,
                     "Write what each rank does to this archive, for https://ui.perfetto.dev")
          ->type_name("FILE");
  app.add_option(
         "--timeline-steps,--timeline_steps", options.timeline_steps,
         "The first and the last optimizer step of the timeline, as 10:20; without it the last events")
      ->type_name("A:B")
      ->check(checks::timeline_steps())
      ->needs(timeline);
}

void add_program_options(CLI::App& app, LaunchOptions& options, PlacementValues& values) {
  CLI::Option* module = app.add_flag("-m,--module", options.module, "PROGRAM is a Python module: python3 -m");
  app.add_flag("--no_python,--no-python", options.no_python,
               "Run PROGRAM itself, although its name ends in .py")
      ->excludes(module);
  CLI::Option* as_deepspeed =
      app.add_flag("--as-deepspeed,--as_deepspeed", options.as_deepspeed,
                   "`import deepspeed` in PROGRAM finds the Python package zerorun (docs/python.md)");
  app.add_flag(
         "--pass_local_rank", options.pass_local_rank,
         "A script gets --local_rank=N too, as from DeepSpeed's launcher, unless --no_local_rank is given")
      ->needs(as_deepspeed);
  app.add_flag("--no_local_rank,--use_env,--use-env", values.no_local_rank,
               "No effect without --pass_local_rank: ranks find LOCAL_RANK in their environment");
  app.add_flag("--dry_run,--dry-run", options.dry_run, "Print what would run where, and run nothing");
}

void add_run_options(CLI::App& app, LaunchOptions& options, double& grace_seconds) {
  app.add_option("--device", options.device,
                 "Device: GPUs where there are any (auto, the default), the CPU (cpu), or only GPUs (cuda)")
      ->type_name("auto|cpu|cuda")
      ->check(checks::one_of({"auto", "cpu", "cuda"}));
  app.add_option(
         "--comm", options.comm,
         "Communication of CPU ranks: shared memory on one host, else Gloo (auto, the default), only "
         "shared memory (shm), shared memory on each host and Gloo between hosts (two-level), or Gloo")
      ->type_name("auto|shm|two-level|gloo")
      ->check(checks::one_of({"auto", "shm", "two-level", "gloo"}));
  CLI::Option* bind =
      app.add_flag("--bind_cores_to_rank", options.bind_cores_to_rank,
                   "Bind each rank to its own cores and NUMA memory, with one thread per core");
  app.add_option("--bind_core_list", options.bind_core_list, "Processors to divide: 0-3,8-11; without it all")
      ->type_name("LIST")
      ->needs(bind);
  app.add_option("--timeout", options.timeout_seconds, "Deadline of every collective, in seconds")
      ->type_name("SECONDS")
      ->check(checks::seconds(0, false, kLongestTimeout))
      ->capture_default_str();
  app.add_option(
         "--hung_after,--hung-after", options.hung_after_seconds,
         "A rank without progress, for which others wait, is ended after this time; without it --timeout")
      ->type_name("SECONDS")
      ->check(checks::seconds(0, false, kLongestTimeout));
  app.add_option("--grace", grace_seconds,
                 "When the job is ended: time between SIGTERM and SIGKILL; without it 1 after a failure")
      ->type_name("SECONDS")
      ->check(checks::seconds(0, true, std::chrono::duration<double>(kLongestGrace).count()))
      ->capture_default_str();
}

void read_output_values(const OutputValues& values, LaunchOptions& options) {
  LogOptions& logs = options.logs;
  if (!values.redirects.empty()) logs.redirects = parse_stream_choice(values.redirects, "--redirects");
  if (!values.tee.empty()) logs.tee = parse_stream_choice(values.tee, "--tee");
  if (!values.printed.empty()) logs.printed = parse_rank_list(values.printed, "--local_ranks_filter");
  constexpr std::array<std::string_view, 5> kLevels = {"debug", "info", "warning", "error", "critical"};
  const std::string level = values.level.empty() ? "info" : values.level;
  const auto found = std::ranges::find(kLevels, level);
  if (found == kLevels.end()) {
    throw UserError("--log_level " + level + ": expected debug, info, warning, error or critical");
  }
  options.verbose = found == kLevels.begin();
  options.quiet = options.quiet || found - kLevels.begin() >= 2;
}

// Checks what torchrun's options mean together, and leaves out those that ask for what is so anyway.
void read_torchrun_values(const PlacementValues& values, LaunchOptions& options) {
  const bool one_host = options.nodes.value_or(1) == 1;
  if (values.standalone) {
    if (!one_host || options.node_rank.value_or(0) != 0 || !options.hostfile.empty()) {
      throw UserError("--standalone is a job on this host alone: leave out " +
                      std::string(!options.hostfile.empty() ? "--hostfile"
                                  : one_host                ? "--node_rank"
                                                            : "--nnodes (--num_nodes)"));
    }
    options.node_rank.reset();
  }
  if (!options.rdzv_endpoint.empty() && parse_endpoint(options.rdzv_endpoint).port == 0 &&
      !(one_host && options.hostfile.empty())) {
    throw UserError("--rdzv_endpoint " + options.rdzv_endpoint +
                    ": the launchers of other hosts cannot find a free port: give a port");
  }
  if (!values.local_address.empty() && !(one_host && options.hostfile.empty())) {
    throw UserError(
        "--local_addr: each host is reached by the address of its route to the others: leave it out");
  }
  if (values.no_ssh && !options.nodes && options.hostfile.empty())
    throw UserError("--no_ssh needs --hostfile, or --num_nodes, the number of hosts");
  // torchrun has one host unless --nnodes says otherwise. Its options for others have no effect then.
  options.this_host_alone = one_host && options.hostfile.empty() &&
                            (values.standalone || options.node_rank || !options.rdzv_endpoint.empty() ||
                             !values.local_address.empty() || !options.ranks_by_kind.empty());
  if (options.this_host_alone) options.rdzv_endpoint.clear();
}

}  // namespace

std::variant<LaunchOptions, Information> parse_launch_options(int argc, const char* const* argv) {
  LaunchOptions options;
  PlacementValues values;
  OutputValues output;
  double grace_seconds = 3;

  CLI::App app(kDescription, "zerorun");
  app.prefix_command();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // as argparse
  auto formatter = std::make_shared<UsageFormatter>();
  formatter->column_width(40);
  app.formatter(formatter);
  app.footer(kExamples);
  app.set_version_flag("--version", "zerorun " ZERORUN_VERSION);
  add_placement_options(app, options, values);
  add_remote_options(app, options, values);
  add_program_options(app, options, values);
  add_output_options(app, options, output);
  add_run_options(app, options, grace_seconds);

  std::vector<std::string> words = as_argparse_reads(app, argc, argv);
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return Information{app.help()};
  } catch (const CLI::CallForVersion& version) {
    return Information{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    throw UserError(describe_mistake(error) + " (see zerorun --help)");
  }
  options.command = command_of(app);
  options.pass_local_rank = options.pass_local_rank && !values.no_local_rank;
  refuse_empty_texts(app);
  options.ranks_per_node = whole_number_in(values.ranks);
  if (!options.ranks_per_node) options.ranks_by_kind = values.ranks;
  options.nodes = whole_number_in(values.nodes);
  options.node_rank = whole_number_in(values.node_rank);
  options.master_port = whole_number_in(values.master_port);
  options.ssh_port = whole_number_in(values.ssh_port);
  options.max_restarts = whole_number_in(values.restarts).value_or(0);
  options.hold_every = whole_number_in(values.hold_every).value_or(0);
  if (!values.launcher.empty()) options.starter = parse_starter(CLI::detail::to_lower(values.launcher));
  options.launcher_args = CLI::detail::split_up(values.launcher_args);
  options.grace = std::chrono::milliseconds(std::llround(grace_seconds * 1000));
  if (app.get_option("--grace")->count() > 0) options.failure_grace = options.grace;
  if (!options.master_addr.empty() && !is_address(options.master_addr)) {
    throw UserError("--master_addr: expected the name or address of a host; found '" + options.master_addr +
                    "'");
  }
  read_output_values(output, options);
  read_torchrun_values(values, options);
  return options;
}

}  // namespace zerorun::launcher
