// `zerorun plan`: what a training will take of memory and of the network. Becomes the program zerorun_plan,
// which uses LibTorch. Called once from main, in its thread.
#pragma once

namespace zerorun::launcher {

/// Replaces this process by zerorun_plan with the arguments after `plan`. Throws UserError if that program is
/// not beside this one.
[[noreturn]] void run_plan_command(int argc, char** argv);

}  // namespace zerorun::launcher
