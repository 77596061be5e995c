// The socket on which the ranks of a job meet: the process that listens owns the port. The launcher opens the
// socket and passes it to rank 0; without the launcher rank 0 opens the socket. Any thread.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace zerorun {

/// The environment variable that holds the descriptor of the launcher's socket, for rank 0.
inline constexpr char kListenVariable[] = "ZERORUN_LISTEN_FD";

struct ListeningSocket {
  UniqueFd fd;  // closed by exec
  int port = 0;
};

/// Listens on `port` (0: a free port) of `address`, a host name or IP address of this machine (empty: all of
/// its interfaces). Throws UserError if the port is in use or the address does not belong to this machine.
ListeningSocket listen_on(const std::string& address, int port);

/// Takes over the socket whose descriptor is in kListenVariable. The result is not open if the descriptor
/// does not listen on `port`: a program between the launcher and this process may have closed the socket.
UniqueFd take_inherited_socket(int port);

}  // namespace zerorun
