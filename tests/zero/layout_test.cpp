// Tests the layout's properties for thousands of random models, and its edge cases.
#include "zero/layout.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>

#include "base/error.h"

namespace zerorun {
namespace {

struct Case {
  std::vector<LayoutParameter> parameters;
  int world_size = 1;
  int64_t alignment = 16;
  int64_t bucket_numel = 1;

  std::string text() const {
    std::ostringstream out;
    out << "ranks " << world_size << ", alignment " << alignment << ", bucket " << bucket_numel
        << ", parameters (numel/group)";
    for (const auto& parameter : parameters) out << " " << parameter.numel << "/" << parameter.group;
    return out.str();
  }
};

// Checks a layout. run() returns the violated properties, or an empty string: thousands of cases are too many
// for Catch2's assertions.
class LayoutCheck {
 public:
  LayoutCheck(const Case& input, const Layout& layout)
      : input_(input), layout_(layout), alignment_(input.alignment) {}

  std::string run() {
    if (layout_.locations.size() != input_.parameters.size()) return "one placement a parameter";
    placed_.assign(input_.parameters.size(), 0);
    for (size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) check_bucket(static_cast<int>(bucket));
    for (size_t index = 0; index < placed_.size(); ++index) {
      expect(placed_[index] == 1, "parameter " + std::to_string(index) + " placed once");
    }
    check_order();
    return wrong_;
  }

 private:
  void expect(bool holds, const std::string& what) {
    if (!holds) wrong_ += (wrong_.empty() ? "" : "; ") + what;
  }

  int64_t aligned_numel(int index) const {
    return (input_.parameters[index].numel + alignment_ - 1) / alignment_ * alignment_;
  }

  void check_bucket(int number) {
    const BucketLayout& bucket = layout_.buckets[number];
    const std::string name = "bucket " + std::to_string(number) + ": ";
    expect(!bucket.parameters.empty(), name + "holds something");
    int64_t end = 0;
    int64_t used = 0;
    int64_t aligned = 0;
    for (int index : bucket.parameters) {
      const LayoutParameter& parameter = input_.parameters[index];
      const ParameterLocation& placement = layout_.locations[index];
      const std::string what = name + "parameter " + std::to_string(index) + " ";
      ++placed_[index];
      expect(placement.bucket == number, what + "says which bucket");
      expect(parameter.group == bucket.group, what + "is of the bucket's group");
      expect(placement.offset >= end, what + "overlaps none before it, by rising offset");
      expect(placement.offset % alignment_ == 0, what + "is aligned");
      expect(placement.offset - end < alignment_, what + "follows the one before closely");
      end = placement.offset + parameter.numel;
      used += parameter.numel;
      aligned += aligned_numel(index);
      expect(end <= bucket.numel, what + "lies inside");
    }
    const int64_t ranks = input_.world_size;
    expect(bucket.slice_numel * ranks == bucket.numel, name + "slices are equal and cover it");
    expect(bucket.slice_numel % alignment_ == 0, name + "slices are aligned");
    // Padding is less than one alignment per parameter, plus less than world size * alignment elements at the
    // end.
    const int64_t bound =
        (alignment_ - 1) * static_cast<int64_t>(bucket.parameters.size()) + alignment_ * ranks - 1;
    expect(bucket.numel - used <= bound, name + "padding is bounded");
    expect(aligned <= input_.bucket_numel || bucket.parameters.size() == 1,
           name + "exceeds the bound only with a lone parameter");
  }

  // Within a group, the buckets contain the parameters in reverse order of registration, and a bucket is
  // closed only if the next parameter does not fit.
  void check_order() {
    std::map<int, int> last;         // by group: the parameter placed last
    std::map<int, int64_t> content;  // by group: aligned elements in its latest bucket
    for (size_t number = 0; number < layout_.buckets.size(); ++number) {
      const BucketLayout& bucket = layout_.buckets[number];
      if (content.contains(bucket.group) && !bucket.parameters.empty()) {
        expect(content[bucket.group] + aligned_numel(bucket.parameters.front()) > input_.bucket_numel,
               "bucket " + std::to_string(number) + " was needed");
      }
      content[bucket.group] = 0;
      for (int index : bucket.parameters) {
        expect(!last.contains(bucket.group) || index < last[bucket.group],
               "parameter " + std::to_string(index) + " in reverse order of registration");
        last[bucket.group] = index;
        content[bucket.group] += aligned_numel(index);
      }
    }
  }

  const Case& input_;
  const Layout& layout_;
  const int64_t alignment_;
  std::vector<int> placed_;
  std::string wrong_;
};

void check(const Case& input) {
  const Layout layout = make_layout(input.parameters, input.world_size, input.alignment, input.bucket_numel);
  const std::string wrong = LayoutCheck(input, layout).run();
  if (!wrong.empty()) FAIL_CHECK(input.text() << "\n" << wrong);
}

int64_t random_numel(std::mt19937_64& random) {
  static constexpr int64_t kPrimes[] = {2, 3, 5, 7, 13, 17, 31, 61, 127, 251, 509, 1021, 65537, 2147483647};
  auto below = [&](int64_t bound) { return std::uniform_int_distribution<int64_t>(0, bound - 1)(random); };
  switch (below(8)) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return kPrimes[below(std::size(kPrimes))];
    case 3:
      return int64_t{1} << below(31);
    case 4:
      return (int64_t{1} << below(31)) + below(3) - 1;
    case 5:
      return (int64_t{1} << 40) + below(1000);
    case 6:
      return below(100);
    default:
      return below(100000);
  }
}

Case random_case(std::mt19937_64& random) {
  auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  static constexpr int64_t kBounds[] = {1, 15, 16, 17, 1000, 4096, 99991, 1 << 20, 500'000'000};
  Case result;
  result.world_size = static_cast<int>(between(1, 64));
  result.alignment = int64_t{1} << between(3, 7);
  result.bucket_numel = between(0, 1) ? kBounds[between(0, std::size(kBounds) - 1)] : between(1, 200000);
  const int64_t groups = between(1, 4);
  const int64_t count = between(0, 60);
  for (int64_t i = 0; i < count; ++i) {
    result.parameters.push_back({random_numel(random), static_cast<int>(between(0, groups - 1))});
  }
  return result;
}

std::vector<LayoutParameter> of_group_0(std::initializer_list<int64_t> numels) {
  std::vector<LayoutParameter> parameters;
  for (int64_t numel : numels) parameters.push_back({numel, 0});
  return parameters;
}

}  // namespace

TEST_CASE("layout: the properties hold for random models") {
  std::mt19937_64 random(20240117);
  for (int i = 0; i < 8000; ++i) check(random_case(random));
}

TEST_CASE("layout: the properties hold for every world size and small parameter") {
  for (int world_size = 1; world_size <= 64; ++world_size) {
    for (int64_t numel = 0; numel <= 70; ++numel) {
      check({of_group_0({numel, 1, numel}), world_size, 4, 64});
      check({of_group_0({numel}), world_size, 4, 1});
    }
  }
}

TEST_CASE("layout: offsets, slices and order of a small model, worked out by hand") {
  // Parameters of 5, 16, 0 and 33 elements are placed in reverse order, each padded to a multiple of 16. The
  // 33 elements are at 0 (48 with padding), the empty parameter is at 48, the 16 elements are at 48, and the
  // 5 elements are at 64 (16 with padding). The sum is 80.
  const Layout layout = make_layout(of_group_0({5, 16, 0, 33}), 3, 16, 1000);
  REQUIRE(layout.buckets.size() == 1);
  const BucketLayout& bucket = layout.buckets[0];
  CHECK(bucket.parameters == std::vector<int>{3, 2, 1, 0});
  CHECK(layout.locations[3].offset == 0);
  CHECK(layout.locations[2].offset == 48);
  CHECK(layout.locations[1].offset == 48);
  CHECK(layout.locations[0].offset == 64);
  CHECK(bucket.slice_numel == 32);  // ceil(80 / 3) = 27, rounded up to a multiple of 16
  CHECK(bucket.numel == 96);
}

TEST_CASE("layout: the bound counts alignment and may be met exactly") {
  CHECK(make_layout(of_group_0({16, 16, 16, 16}), 1, 16, 32).buckets.size() == 2);
  CHECK(make_layout(of_group_0({16, 16, 16, 16}), 1, 16, 31).buckets.size() == 4);
  CHECK(make_layout(of_group_0({1, 1}), 1, 16, 17).buckets.size() == 2);  // each parameter takes 16 elements
  CHECK(make_layout(of_group_0({1, 1}), 1, 16, 32).buckets.size() == 1);
}

TEST_CASE("layout: a parameter larger than the bound gets a bucket of its own") {
  const Layout layout = make_layout(of_group_0({8, 1000, 8}), 2, 16, 100);
  REQUIRE(layout.buckets.size() == 3);
  CHECK(layout.buckets[1].parameters == std::vector<int>{1});
  CHECK(layout.buckets[1].numel == 1024);
}

TEST_CASE("layout: groups share no bucket, even when they alternate") {
  std::vector<LayoutParameter> parameters;
  for (int i = 0; i < 10; ++i) parameters.push_back({16, i % 2 ? 7 : 3});
  const Layout layout = make_layout(parameters, 2, 16, 1000);
  REQUIRE(layout.buckets.size() == 2);
  CHECK(layout.buckets[0].group == 7);
  CHECK(layout.buckets[0].parameters == std::vector<int>{9, 7, 5, 3, 1});
  CHECK(layout.buckets[1].group == 3);
  CHECK(layout.buckets[1].parameters == std::vector<int>{8, 6, 4, 2, 0});
}

TEST_CASE("layout: a parameter that is alone has the same layout whatever else there is") {
  const auto alone_among = [](std::initializer_list<int64_t> others) {
    std::vector<LayoutParameter> parameters = of_group_0(others);
    LayoutParameter lone = of_group_0({100}).front();
    lone.alone = true;
    parameters.insert(parameters.begin() + static_cast<int64_t>(others.size()) / 2, lone);
    const Layout layout = make_layout(parameters, 3, 16, 1000);
    const ParameterLocation& place = layout.locations[others.size() / 2];
    CHECK(layout.buckets[place.bucket].parameters.size() == 1);
    CHECK(place.offset == 0);
    return layout.buckets[place.bucket].numel;
  };
  CHECK(alone_among({}) == 144);
  CHECK(alone_among({5, 7, 300}) == 144);
  CHECK(alone_among({5, 7}) == 144);
}

TEST_CASE("layout: nothing to lay out, and nothing but empty parameters") {
  CHECK(make_layout({}, 4, 16, 100).buckets.empty());
  const Layout layout = make_layout(of_group_0({0, 0, 0}), 4, 16, 100);
  REQUIRE(layout.buckets.size() == 1);
  CHECK(layout.buckets[0].numel == 0);
  CHECK(layout.buckets[0].parameters.size() == 3);
}

TEST_CASE("layout: an alignment or a world size of 0 is refused") {
  CHECK_THROWS_AS(make_layout(of_group_0({1}), 2, 0, 100), InternalError);
  CHECK_THROWS_AS(make_layout(of_group_0({1}), 0, 16, 100), InternalError);
}

TEST_CASE("choose_bucket_numel: the least of both bounds, a sixteenth of the parameters and 32 MiB") {
  constexpr int64_t kHuge = 500'000'000;
  const auto choose = [](int64_t total, int64_t element_size, int64_t reduce, int64_t all_gather) {
    return choose_bucket_numel(total, element_size,
                               {.reduce_bucket_size = reduce, .allgather_bucket_size = all_gather});
  };
  CHECK(choose(16'000, 4, kHuge, kHuge) == 1000);
  CHECK(choose(16'000, 4, 999, kHuge) == 999);
  CHECK(choose(16'000, 4, kHuge, 998) == 998);
  CHECK(choose(int64_t{1} << 40, 4, kHuge, kHuge) == 8 * 1024 * 1024);
  CHECK(choose(int64_t{1} << 40, 2, kHuge, kHuge) == 16 * 1024 * 1024);
  CHECK(choose(int64_t{1} << 40, 4, std::numeric_limits<int64_t>::max(), 5'000'000) == 5'000'000);
  CHECK(choose(16'015, 4, kHuge, kHuge) == 1000);
}

TEST_CASE("choose_bucket_numel: a device may allow more, but not more than is gathered ahead") {
  constexpr int64_t kMebi = int64_t{1} << 20;
  const auto choose = [](int64_t max_bytes, int64_t prefetch) {
    return choose_bucket_numel(int64_t{1} << 40, 2,
                               {.reduce_bucket_size = 500'000'000,
                                .allgather_bucket_size = 500'000'000,
                                .max_bytes = max_bytes,
                                .prefetch = prefetch});
  };
  CHECK(choose(256 * kMebi, std::numeric_limits<int64_t>::max()) == 128 * kMebi);
  CHECK(choose(2048 * kMebi, std::numeric_limits<int64_t>::max()) == 500'000'000);
  CHECK(choose(256 * kMebi, 50'000'000) == 50'000'000);
  CHECK(choose(256 * kMebi, 1'000'000) == 16 * kMebi);  // 32 MiB, as on CPUs
  CHECK(choose(256 * kMebi, 0) == 16 * kMebi);
  CHECK(choose(8 * kMebi, 1'000'000) == 4 * kMebi);
}

TEST_CASE("choose_bucket_numel: at least 1, however small the model") {
  CHECK(choose_bucket_numel(15, 4, {.reduce_bucket_size = 500, .allgather_bucket_size = 500}) == 1);
  CHECK(choose_bucket_numel(0, 4, {.reduce_bucket_size = 500, .allgather_bucket_size = 500}) == 1);
}

}  // namespace zerorun
