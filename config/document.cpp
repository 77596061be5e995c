#include "config/document.h"

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "config/number.h"
#include "config/scanner.h"
#include "config/syntax_error.h"

namespace zerorun {
namespace {

/// Whether the whole word is one value: the parser reads `0x2` as a 0 followed by something else.
bool is_whole(std::string_view word) {
  return word == "true" || word == "false" || word == "null" || is_number(word);
}

/// Builds the tree from nlohmann/json's events. The position of an event is that of the next token that is
/// neither a comma nor a colon.
class TreeBuilder {
 public:
  TreeBuilder(const ScannedText& scanned, Diagnostics& diagnostics)
      : scanned_(scanned), diagnostics_(diagnostics) {}

  std::optional<Value> take_root() { return std::move(root_); }

  // The interface that nlohmann::json::sax_parse calls; returning false stops the parser.
  bool null() { return add_word(scalar(ValueKind::null)); }
  bool boolean(bool value) {
    Value node = scalar(ValueKind::boolean);
    node.boolean = value;
    return add_word(std::move(node));
  }
  bool number_integer(std::int64_t value) { return add_number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) { return add_number(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) { return add_number(value); }
  bool string(std::string& text) {
    Value node = scalar(ValueKind::string);
    node.text = std::move(text);
    return add(std::move(node));
  }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // JSON text has none
  bool start_object(std::size_t) { return open(ValueKind::object); }
  bool start_array(std::size_t) { return open(ValueKind::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& text) {
    const Token& token = next_token();
    Frame& frame = frames_.back();
    frame.key = text;
    frame.key_at = token.at;
    const auto [first, added] = frame.lines.emplace(text, token.at.line);
    frame.duplicate = !added;
    if (!added) {
      diagnostics_.report({token.at, path(), "each key once in its object",
                           spelling(token) + " again, first on line " + std::to_string(first->second),
                           "keep one of the two"});
    }
    return true;
  }

  bool parse_error(std::size_t bytes_read, const std::string&, const nlohmann::detail::exception& error) {
    const auto& tokens = scanned_.tokens;
    std::size_t index = tokens.size();
    if (bytes_read <= scanned_.json.size()) {
      // The refused token is the last that the parser has begun to read.
      while (index > 0 && tokens[index - 1].at.offset >= bytes_read) --index;
      if (index > 0) --index;
      // In a malformed number the parser may have read one byte too many, which can be a token of its own.
      if (index > 0 && tokens[index - 1].kind == TokenKind::word && !is_whole(spelling(tokens[index - 1])))
        --index;
    }
    return refuse(index, error.what());
  }

 private:
  struct Frame {
    Value value;
    std::string key;
    Position key_at;
    bool duplicate = false;  // the value of this key is read and dropped
    std::unordered_map<std::string, int> lines;
  };

  const Token& next_token() {
    const auto& tokens = scanned_.tokens;
    while (next_ < tokens.size() &&
           (tokens[next_].kind == TokenKind::comma || tokens[next_].kind == TokenKind::colon)) {
      ++next_;
    }
    ZR_CHECK(next_ < tokens.size(), "the parser saw more tokens than the scanner");
    return tokens[next_++];
  }

  std::string spelling(const Token& token) const {
    return scanned_.json.substr(token.at.offset, token.length);
  }

  /// The path of the value that is being read. Built only for a message, because a key may be as long as the
  /// file.
  std::string path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      if (frame.value.kind == ValueKind::array) {
        path += "[" + std::to_string(frame.value.items.size()) + "]";
      } else if (!frame.key.empty()) {
        path += (path.empty() ? "" : ".") + shortened(frame.key);
      }
    }
    return path;
  }

  Value scalar(ValueKind kind) {
    const Token& token = next_token();
    Value node;
    node.kind = kind;
    node.at = token.at;
    node.literal = spelling(token);
    return node;
  }

  bool add_number(double number) {
    Value node = scalar(ValueKind::number);
    node.number = number;
    return add_word(std::move(node));
  }

  bool add_word(Value node) { return is_whole(node.literal) ? add(std::move(node)) : refuse(next_ - 1, ""); }

  bool refuse(std::size_t index, std::string_view reason) {
    Mistake mistake = explain_syntax_error(scanned_, index, reason);
    mistake.path = path();
    diagnostics_.report(std::move(mistake));
    return false;
  }

  bool open(ValueKind kind) {
    Frame frame;
    frame.value.kind = kind;
    frame.value.at = next_token().at;
    frames_.push_back(std::move(frame));
    return true;
  }

  bool close() {
    next_token();
    Value value = std::move(frames_.back().value);
    frames_.pop_back();
    return add(std::move(value));
  }

  bool add(Value value) {
    if (frames_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = frames_.back();
    if (frame.value.kind == ValueKind::array) {
      frame.value.items.push_back(std::move(value));
    } else {
      if (!frame.duplicate) frame.value.members.push_back({frame.key, frame.key_at, std::move(value)});
      frame.key.clear();
    }
    return true;
  }

  const ScannedText& scanned_;
  Diagnostics& diagnostics_;
  std::size_t next_ = 0;
  std::vector<Frame> frames_;
  std::optional<Value> root_;
};

}  // namespace

const Value* Value::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::optional<Value> read_document(std::string_view text, Diagnostics& diagnostics) {
  const ScannedText scanned = scan(text);
  TreeBuilder builder(scanned, diagnostics);
  if (!nlohmann::json::sax_parse(scanned.json, &builder)) return std::nullopt;
  std::optional<Value> root = builder.take_root();
  if (scanned.mistake) {
    diagnostics.report(*scanned.mistake);
    return std::nullopt;
  }
  if (root->kind != ValueKind::object) {
    diagnostics.report({root->at, "", "an object in braces", describe(*root),
                        "put the settings in one object: {\"key\": value}"});
    return std::nullopt;
  }
  return root;
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case ValueKind::array:
      return "an array";
    case ValueKind::object:
      return "an object";
    default:
      return shortened(value.literal);
  }
}

}  // namespace zerorun
