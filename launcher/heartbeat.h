// How the launcher and the agents on other hosts notice that the other end is gone. Constants.
#pragma once

#include <chrono>

namespace zerorun::launcher {

/// Both ends send a heartbeat this often.
inline constexpr std::chrono::milliseconds kHeartbeat(1000);

/// The main threads of both ends look after their connections at least this often.
inline constexpr std::chrono::milliseconds kControlTick(250);

/// An end of a connection counts as lost if it has sent nothing for this long. With the default grace, ending
/// the ranks takes up to 3 s more. So on every host that still works, the ranks have ended 8 s after the last
/// message from the lost end. docs/guide.md names both values.
inline constexpr std::chrono::milliseconds kSilence(5000);

/// Ranks whose launcher is lost get only a short grace period, because nobody waits for their results.
inline constexpr std::chrono::milliseconds kLostGrace(1000);

/// If two rounds of an end's main loop are this far apart, its own process was stopped, and the silence of
/// the other end does not count.
inline constexpr std::chrono::milliseconds kOwnPause(2000);

}  // namespace zerorun::launcher
