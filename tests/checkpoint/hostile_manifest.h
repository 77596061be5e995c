// Manifests of checkpoints with split parameters, changed at random: for a test and for a fuzzer
// (`scripts/fuzz manifest`).
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace zerorun::testing {

/// The manifest of a checkpoint of two tensor ranks, within a window.
std::string manifest_of_split();

/// Returns the text with one value or member changed: to a number at a limit or near the old one, to a copy
/// of another, or removed. A text that is not JSON becomes manifest_of_split().
std::string mutate_manifest(const std::string& text, std::mt19937_64& random);

enum class Reading { refused, faulty, read };

/// Reads a checkpoint whose manifest is `text`, with checksums that fit, and whose files are zeros: verifies
/// and compares it, and reads all states into other splits and orders. Returns what came of it, with
/// UserError as the only way to refuse. Aborts if an element is put outside of its part, or is missing.
Reading read_manifest(const std::string& text);

}  // namespace zerorun::testing
