// run_program() for the body of main(): turns errors into one message and an exit code. UserError reports a
// user's mistake. Needs no LibTorch.
#pragma once

#include "base/cores.h"
#include "base/error.h"
#include "base/program.h"
