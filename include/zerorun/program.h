// run_program() for the body of main(): turns errors into one message and an exit code. UserError reports a
// user's mistake. ProgramPart: what a program does, for the report about a rank that hangs. Needs no
// LibTorch.
#pragma once

#include "base/cores.h"
#include "base/error.h"
#include "base/program.h"
#include "base/program_part.h"
