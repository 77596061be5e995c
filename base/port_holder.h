// Finds out who uses a port of this host, for error messages: reads all of /proc. Any thread.
#pragma once

#include <string>

namespace zerorun {

/// The process that listens on the TCP port of `address`, numeric or a name of this host, or of all addresses
/// (empty: of any address), such as "process 12 (python3) of user anna". Only "a process of
/// user anna" if this process may not look into that one. Empty if nobody listens or /proc cannot be read.
std::string listener_on(const std::string& address, int port);

/// Likewise the process with the Unix socket of this name in the abstract namespace; empty also if this
/// process may not look into that one.
std::string holder_of_abstract_name(const std::string& name);

}  // namespace zerorun
