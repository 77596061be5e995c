// How the launcher and the agents on other hosts notice that the other end is gone. Constants.
#pragma once

#include <chrono>

namespace zerorun {

/// Both ends send a heartbeat this often.
inline constexpr std::chrono::milliseconds kHeartbeat(1000);

/// The main threads of both ends look after their connections at least this often.
inline constexpr std::chrono::milliseconds kControlTick(250);

/// An end that has sent nothing for this long counts as lost. With the default grace, ending the ranks takes
/// up to 3 s more: on every host that still works they have ended 8 s after the last sign of life.
/// docs/guide.md names both values.
inline constexpr std::chrono::milliseconds kSilence(5000);

}  // namespace zerorun
