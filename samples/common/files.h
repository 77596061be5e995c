// Whole files of text and JSON. Any thread.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace zerorun {

/// Throws UserError with the file's name and the reason.
std::string read_text(const std::filesystem::path& file);
/// Throws UserError with the file's name, and for bad JSON the line and column.
nlohmann::json read_json(const std::filesystem::path& file);
/// Replaces the file, or leaves it as it was. Throws UserError with its name and the reason.
void write_text(const std::filesystem::path& file, const std::string& text);
/// Creates the folder, and those above it, if needed. Throws UserError.
void create_folder(const std::filesystem::path& folder);

}  // namespace zerorun
