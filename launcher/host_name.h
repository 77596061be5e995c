// Names and addresses of hosts, as options, hostfiles and messages of other hosts give them. They reach ssh,
// variables and the terminal, so only what can be one is taken. Pure.
#pragma once

#include <string>

#include "launcher/launch_options.h"

namespace zerorun::launcher {

/// Whether `name` can be a host in a hostfile: a name or address, as ssh takes it also `user@host`. False for
/// a name that ssh would take for an option.
bool is_host(const std::string& name);

/// Whether `text` can be the name or the address of a host: has their characters, and does not begin with -.
bool is_address(const std::string& text);

/// Where the launchers of a job meet.
struct Endpoint {
  std::string address;
  int port = kDefaultPort;  // 0: a free one
};

/// Parses HOST, HOST:PORT or [IPv6]:PORT, the value of --rdzv_endpoint. Throws UserError.
Endpoint parse_endpoint(const std::string& text);

}  // namespace zerorun::launcher
