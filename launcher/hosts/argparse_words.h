// The words of a command line as argparse, which DeepSpeed's launcher and torchrun use, reads them. Pure.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace zerorun::launcher {

/// The arguments, changed so that CLI11 reads them as argparse does: the empty text after "--option=" is the
/// value, "-H=FILE" has the value FILE, and an option is no value of another one, except of --launcher_args.
/// Leaves out `--num_gpus -1`, `--num_nodes -1` and `--node_rank -1`: DeepSpeed's defaults, which wrappers
/// write. Throws UserError.
std::vector<std::string> as_argparse_reads(const CLI::App& app, int argc, const char* const* argv);

/// Throws UserError if the last value of an option of `app` is an empty text, which would count as not given.
void refuse_empty_texts(const CLI::App& app);

}  // namespace zerorun::launcher
