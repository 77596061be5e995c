// The socket on which the ranks of a job meet. The launcher binds it, which reserves the port, and passes it
// to rank 0, which listens. Without the launcher rank 0 opens the socket itself. Rank 0's program may also
// open a store of torch.distributed on the same port. Of that store and ZeroRun's own, the one that is opened
// first listens. Any thread.
#pragma once

#include <string>

#include "base/error.h"
#include "base/unique_fd.h"

namespace zerorun {

/// Thrown by the functions here if the port is in use.
struct PortTaken : UserError {
  using UserError::UserError;
};

/// The environment variable that holds the descriptor of the launcher's socket, for rank 0.
inline constexpr char kListenVariable[] = "ZERORUN_LISTEN_FD";

struct ListeningSocket {
  UniqueFd fd;  // closed by exec
  int port = 0;
  UniqueFd claim;  // set by reserve_port(): no other call reserves the port while this is open
};

/// Listens on `port` (0: a free port) of `address`, a host name or IP address of this machine (empty: all of
/// its interfaces). Throws PortTaken, or UserError, for example if the address does not belong to this
/// machine.
ListeningSocket listen_on(const std::string& address, int port);

/// Like listen_on(), but only binds the socket and does not listen. Another socket can bind the port and
/// listen if it has SO_REUSEADDR, as a store of torch.distributed in rank 0's program has. Sockets without
/// SO_REUSEADDR cannot bind the port, and the system does not use it for outgoing connections. While the
/// result's `claim` is open, a second reserve_port() on this host throws UserError, which names the process
/// that uses the port, where this process may know it.
ListeningSocket reserve_port(const std::string& address, int port);
/// Reserves the port and listens on it. If several processes call this at the same moment with the same
/// address, exactly one succeeds. With listen_on() all of them may fail, because Linux marks a socket as
/// listening before it checks whether another socket listens. Throws UserError.
ListeningSocket listen_as_first(const std::string& address, int port);

/// Takes over the socket whose descriptor is in the environment variable, and listens. The result is not open
/// if the descriptor is not a socket bound to `port` (a program between the launcher and this process may
/// have closed the socket), or if another socket of this process listens on the port. Throws PortTaken if one
/// of another process does.
UniqueFd take_inherited_socket(int port, const char* variable = kListenVariable);

/// Whether this process itself listens on `port`.
bool this_process_listens_on(int port);

}  // namespace zerorun
