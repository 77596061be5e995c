// What subcommands print on standard output.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace zerorun::launcher {

void print_bytes(const std::string& text);

/// Names of files and variables may be part of the text: control characters in it become ?.
void print(const std::string& text);

/// Bytes that are not UTF-8 are replaced; JSON escapes control characters.
void print_json(const nlohmann::ordered_json& json);

}  // namespace zerorun::launcher
