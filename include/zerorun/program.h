// The frame of a program: run_program() makes errors one message and an exit code, UserError is one of the
// user's making. Needs no LibTorch.
#pragma once

#include "base/cores.h"
#include "base/error.h"
#include "base/program.h"
