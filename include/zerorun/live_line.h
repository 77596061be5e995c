// A line that shows how training goes: LiveLine.
#pragma once

#include "engine/live_line.h"
