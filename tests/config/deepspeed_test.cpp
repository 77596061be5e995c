// ZeroRun's verdicts on configurations whose verdict in DeepSpeed is known.
#include <catch2/catch.hpp>
#include <string>

#include "tests/config/refusal.h"

using namespace zerorun::test;

namespace {

std::string with_line_breaks(std::string text) {
  for (std::size_t at; (at = text.find("\\n")) != std::string::npos;) text.replace(at, 2, "\n");
  return text;
}

}  // namespace

TEST_CASE("what DeepSpeed refuses is refused, and so are the mistakes that it swallows") {
  int rows = 0;
  for (const std::string& line : data_lines("deepspeed_verdicts.tsv")) {
    INFO(line);
    const auto fields = split(line, '\t');
    const std::string text = fields.size() > 3 ? with_line_breaks(fields[3]) : "";
    const auto found = refusals(text);
    if (fields.at(2) == "-") {
      CHECK(found.empty());
      // A missing optimizer is not known before the program says whether it brings its own. Sizes with a
      // fraction and integers in quotes occur in real files, and are unambiguous. SGD needs no permission
      // here (zero_allow_untested_optimizer).
      const bool known = fields.at(0) == "opt_missing_s2" || fields.at(0) == "bucket_frac" ||
                         fields.at(0) == "micro_str" || fields.at(0) == "fp16_zero_s1_sgd";
      CHECK((fields.at(1) == "takes" || known));
    } else {
      REQUIRE(!found.empty());
      CHECK(found[0].path == fields.at(2));
    }
    ++rows;
  }
  CHECK(rows == 79);
}
