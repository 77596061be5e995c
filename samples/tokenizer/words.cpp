#include "samples/tokenizer/words.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <zerorun/program.h>

#include <algorithm>
#include <string>

#include "samples/tokenizer/utf8.h"

namespace samples {
namespace {

// The pattern spells out Unicode's White_Space instead of \s, because PCRE2's \s also matches U+180E.
constexpr const char* kPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+)"
                                 R"(| ?[^\t-\r\x{85}\p{Z}\p{L}\p{N}]+)"
                                 R"(|[\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[\t-\r\x{85}\p{Z}]+)";

bool is_space(char character) {
  return character == ' ' || (character >= '\t' && character <= '\r');
}

}  // namespace

struct WordSplitter::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;

  Pattern() {
    int error = 0;
    PCRE2_SIZE where = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_ANCHORED, &error, &where, nullptr);
    ZR_CHECK(code, "PCRE2 error " + std::to_string(error) + " at " + std::to_string(where));
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without the JIT compiler, matching is only slower
    match = pcre2_match_data_create_from_pattern(code, nullptr);
  }
  ~Pattern() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
};

WordSplitter::WordSplitter() : pattern_(std::make_unique<Pattern>()) {}
WordSplitter::~WordSplitter() = default;

void WordSplitter::start(std::string_view text) {
  text_ = text;
  offset_ = 0;
  valid_end_ = valid_utf8_prefix(text);
}

std::string_view WordSplitter::next() {
  if (offset_ == text_.size()) return {};
  const size_t begin = offset_;
  if (begin == valid_end_) {  // invalid UTF-8
    do {
      ++offset_;
      valid_end_ = offset_ + valid_utf8_prefix(text_.substr(offset_));
    } while (valid_end_ == offset_ && offset_ < text_.size());
    return text_.substr(begin, offset_ - begin);
  }
  const int found = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(text_.data()), valid_end_, begin,
                                PCRE2_NO_UTF_CHECK, pattern_->match, nullptr);
  ZR_CHECK(found > 0, "PCRE2 error " + std::to_string(found));
  offset_ = pcre2_get_ovector_pointer(pattern_->match)[1];
  ZR_CHECK(offset_ > begin, "an empty word");
  return text_.substr(begin, offset_ - begin);
}

size_t last_cut(std::string_view text, size_t limit) {
  for (size_t cut = std::min(limit, text.size()); cut-- > 1;) {
    const auto before = static_cast<unsigned char>(text[cut - 1]);
    if (is_space(text[cut]) && before < 0x80 && !is_space(text[cut - 1])) return cut;
  }
  return 0;
}

}  // namespace samples
