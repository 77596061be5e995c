// Reads and writes whole files of text and JSON. Safe from any thread.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace samples {

/// Returns the content of a regular file of at most 1 GiB. Throws UserError with the file's name and the
/// reason.
std::string read_text(const std::filesystem::path& file);
/// Returns the parsed file. Throws UserError with the file's name, and for bad JSON the line and column.
/// Nesting deeper than 100 levels is an error.
nlohmann::json read_json(const std::filesystem::path& file);
/// Returns a folder for files that can be made again: NAME in XDG_CACHE_HOME, else in ~/.cache, else
/// NAME-USER in the folder for temporary files. Makes it. Throws UserError if another user can write it.
std::filesystem::path user_cache_folder(const std::string& name);
/// Replaces the file. On an error the file stays as it was, and the function throws UserError with its name
/// and the reason.
void write_text(const std::filesystem::path& file, const std::string& text);
/// Creates the folder and missing parent folders. Throws UserError if that fails.
void create_folder(const std::filesystem::path& folder);

}  // namespace samples
