// Tests that the text of a struct shows every field, whatever its type.
#include "base/describe.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <sstream>
#include <string>

namespace zerorun {
namespace {

enum class Color { red, green };

struct Inner {
  double x = 0.1;
  bool flag = false;
};

struct Outer {
  int count = 1;
  Color color = Color::red;
  std::optional<double> maybe = {};
  std::vector<int> list = {};
  std::variant<Inner, double> either = {};
  Inner inner = {};
  long last = 0;
};

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream text;
  describe(text, value);
  return text.str();
}

TEST_CASE("describe: a change of any field changes the text") {
  const std::string plain = text_of(Outer{});
  CHECK(text_of(Outer{}) == plain);
  auto changed = [&](auto change) {
    Outer outer;
    change(outer);
    return text_of(outer) != plain;
  };
  CHECK(changed([](Outer& outer) { outer.count = 2; }));
  CHECK(changed([](Outer& outer) { outer.color = Color::green; }));
  CHECK(changed([](Outer& outer) { outer.maybe = 0; }));
  CHECK(changed([](Outer& outer) { outer.list = {0}; }));
  CHECK(changed([](Outer& outer) { outer.either = 0.1; }));
  CHECK(changed([](Outer& outer) { std::get<Inner>(outer.either).flag = true; }));
  CHECK(changed([](Outer& outer) { outer.inner.x = std::nextafter(0.1, 1.0); }));
  CHECK(changed([](Outer& outer) { outer.inner.flag = true; }));
  CHECK(changed([](Outer& outer) { outer.last = 1; }));
}

TEST_CASE("describe: the same digits, divided differently among fields, give different texts") {
  CHECK(text_of(std::tuple(1, 23)) != text_of(std::tuple(12, 3)));
  using Lists = std::tuple<std::vector<int>, std::vector<int>>;
  CHECK(text_of(Lists({1}, {2})) != text_of(Lists({1, 2}, {})));
  using Maybes = std::tuple<std::optional<int>, std::optional<int>>;
  CHECK(text_of(Maybes(1, std::nullopt)) != text_of(Maybes(std::nullopt, 1)));
}

TEST_CASE("describe: fields are counted") {
  STATIC_REQUIRE(fields::count<Inner>() == 2);
  STATIC_REQUIRE(fields::count<Outer>() == 7);
}

}  // namespace
}  // namespace zerorun
