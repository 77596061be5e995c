// TCP ports for the ranks' rendezvous. Any thread may call.
#pragma once

namespace zerorun {

/// A port on which nobody listens now. Rank 0 binds it a moment later: until then another process could take
/// it, which the rendezvous reports. Throws Error if the system has none.
int find_free_port();

}  // namespace zerorun
