// The machine's name, its addresses and the launcher's variables. Each call asks the system again; any thread
// may call.
#pragma once

#include <string>
#include <vector>

namespace zerorun::launcher {

std::string this_hostname();

/// The addresses of this machine's network interfaces, in numbers.
std::vector<std::string> addresses_of_this_host();

/// The value of an environment variable of this process; empty if it is not set.
std::string variable(const char* name);

}  // namespace zerorun::launcher
