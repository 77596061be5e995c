// Searches the last lines that a program wrote to stderr for the reason of its end: an uncaught exception of
// C++ or Python, a failed assertion, a full disk, a failed allocation. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun::launcher {

/// The type and text of an uncaught exception, C++'s or Python's: "std::runtime_error: text".
std::optional<std::string> find_uncaught_exception(const std::vector<std::string>& lines);

/// The line in which assert(), the C library or LibTorch says which check failed.
std::optional<std::string> find_failed_assertion(const std::vector<std::string>& lines);

/// The line that says that a disk or a quota is full.
std::optional<std::string> find_full_disk(const std::vector<std::string>& lines);

/// The line that says that memory, of the host or of a GPU, could not be allocated.
std::optional<std::string> find_failed_allocation(const std::vector<std::string>& lines);

}  // namespace zerorun::launcher
