// Runs the opcodes of a pickle, as Python's pickle machine does, except that it imports and calls nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "convert/pickle_arena.h"

namespace zerorun::convert {

/// Adds the pickle's values to `arena` and returns the node of its root. Throws UserError naming `place` and
/// the offset in the pickle.
uint32_t run_pickle(std::span<const std::byte> bytes, const std::string& place, PickleArena& arena);

}  // namespace zerorun::convert
