#include "base/name_pattern.h"

#include <catch2/catch.hpp>

using namespace zerorun;

TEST_CASE("a star stands for one part of a name") {
  CHECK(matches_name("h.*.mlp", "h.3.mlp"));
  CHECK_FALSE(matches_name("h.*.mlp", "h.3.4.mlp"));
  CHECK_FALSE(matches_name("h.*", "h"));
}

TEST_CASE("a pattern that may match anywhere: a star stands for any characters") {
  CHECK(matches_anywhere("bias", "layers.3.gate.e_score_correction_bias"));
  CHECK(matches_anywhere("layers.*.correction", "layers.3.gate.correction_bias"));
  CHECK(matches_anywhere("layers.*correction", "model.layers.3.gate.e_score_correction_bias"));
  CHECK(matches_anywhere("a*b*c", "a b c"));
  CHECK(matches_anywhere("a*b*c", "xabc"));
  CHECK(matches_anywhere("", "any"));
  CHECK(matches_anywhere("*", ""));
  CHECK_FALSE(matches_anywhere("a*b", "b a"));
  CHECK_FALSE(matches_anywhere("ab*bc", "abc"));
  CHECK_FALSE(matches_anywhere("bias", "weight"));
}
