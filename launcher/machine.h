// The machine's name and the launcher's variables. Each call asks the system again; any thread may call.
#pragma once

#include <string>

namespace zerorun::launcher {

std::string this_hostname();

/// The value of an environment variable of this process; empty if it is not set.
std::string variable(const char* name);

}  // namespace zerorun::launcher
