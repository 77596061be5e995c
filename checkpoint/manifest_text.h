// The text of a manifest as JSON. Functions without state; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace zerorun::checkpoint {

struct ManifestText {
  nlohmann::json members;                              // without client_state
  std::optional<nlohmann::ordered_json> client_state;  // its keys are in the program's order
};

/// Parses the text in one pass. Throws UserError naming `place` if it is not JSON, or nested deeper than
/// kDeepestJson, because writing or destroying that could overflow the stack.
ManifestText parse_manifest_text(const std::string& text, const std::string& place);

/// Parses a client_state. ordered_json::parse() takes a time that grows with the square of an object's size.
nlohmann::ordered_json parse_client_state(const std::string& text);

}  // namespace zerorun::checkpoint
