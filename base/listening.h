// The socket on which the ranks of a job meet: whoever listens has the port, nobody else can get it. The
// launcher opens it and hands it down to rank 0; without the launcher rank 0 opens it. Any thread.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace zerorun {

/// Names the descriptor of the launcher's socket to rank 0.
inline constexpr char kListenVariable[] = "ZERORUN_LISTEN_FD";

struct ListeningSocket {
  UniqueFd fd;  // closed by exec
  int port = 0;
};

/// Listens on `address`, a name or a number of this machine (empty: on all of its interfaces), and on `port`
/// (0: a free one). Throws UserError if that is taken or not this machine's.
ListeningSocket listen_on(const std::string& address, int port);

/// Takes over the socket that kListenVariable names, if it still is one that listens on `port`: programs
/// between the launcher and this one may have closed it. Not open: there is none.
UniqueFd take_inherited_socket(int port);

}  // namespace zerorun
