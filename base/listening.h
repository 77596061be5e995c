// The socket on which the ranks of a job meet: the process that listens owns the port. The launcher opens
// it and passes it to rank 0; without the launcher rank 0 opens it. Any thread.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace zerorun {

/// The variable that tells rank 0 the descriptor of the launcher's socket.
inline constexpr char kListenVariable[] = "ZERORUN_LISTEN_FD";

struct ListeningSocket {
  UniqueFd fd;  // closed by exec
  int port = 0;
};

/// Listens on `address`, a name or number of this machine (empty: all of its interfaces), and `port` (0: a
/// free one). Throws UserError if the port is taken or the address is not this machine's.
ListeningSocket listen_on(const std::string& address, int port);

/// Takes over the socket that kListenVariable names, if it is still a socket that listens on `port`: a
/// program between the launcher and this one may have closed it. Otherwise the result is not open.
UniqueFd take_inherited_socket(int port);

}  // namespace zerorun
