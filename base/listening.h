// The socket on which the ranks of a job meet. The launcher binds it, which reserves the port, and passes it
// to rank 0, which listens. Without the launcher rank 0 opens the socket itself. Rank 0's program may also
// open a store of torch.distributed on the same port: whichever store is opened first listens. Any thread.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace zerorun {

/// The environment variable that holds the descriptor of the launcher's socket, for rank 0.
inline constexpr char kListenVariable[] = "ZERORUN_LISTEN_FD";

struct ListeningSocket {
  UniqueFd fd;  // closed by exec
  int port = 0;
  UniqueFd claim;  // set by reserve_port(): no other call reserves the port while this is open
};

/// Listens on `port` (0: a free port) of `address`, a host name or IP address of this machine (empty: all of
/// its interfaces). Throws UserError if the port is in use or the address does not belong to this machine.
ListeningSocket listen_on(const std::string& address, int port);

/// As listen_on(), but the socket is only bound and does not listen. One other socket with SO_REUSEADDR may
/// be bound to the port and listen: a store of torch.distributed in rank 0's program. Sockets without
/// SO_REUSEADDR are refused, and outgoing connections do not get the port. A second reserve_port() on this
/// host throws UserError as long as the result's `claim` is open.
ListeningSocket reserve_port(const std::string& address, int port);
/// Reserves the port and listens on it. Of processes that call it at the same moment with the same address,
/// exactly one succeeds. With listen_on() all of them may fail: Linux marks a socket as listening before it
/// checks for another one that is. Throws UserError.
ListeningSocket listen_as_first(const std::string& address, int port);

/// Takes over the socket whose descriptor is in kListenVariable, and listens. The result is not open if the
/// descriptor is no socket of `port` (a program between the launcher and this process may have closed it), or
/// if another socket listens on the port.
UniqueFd take_inherited_socket(int port);

/// Whether this process itself listens on `port`.
bool this_process_listens_on(int port);

}  // namespace zerorun
