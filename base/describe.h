// Writes all fields of a plain struct as text. Code that compares two structs by their texts therefore also
// compares fields that are added later. Numbers are written exactly. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace zerorun {
namespace fields {

// Can initialize any field of the aggregate `Whole`. Converts to every type except `Whole` itself, which no
// field has.
template <typename Whole>
struct Any {
  template <typename Field>
  requires(!std::is_same_v<std::remove_cvref_t<Field>, Whole>) operator Field() const;
};

template <typename T, std::size_t... I>
consteval bool takes(std::index_sequence<I...> /*count*/) {
  return requires {
    T{(static_cast<void>(I), Any<T>{})...};
  };
}

inline constexpr std::size_t kMost = 16;

/// The number of fields of an aggregate: the largest number of values that can initialize the aggregate.
template <typename T, std::size_t N = kMost>
consteval std::size_t count() {
  static_assert(N < kMost || !takes<T>(std::make_index_sequence<kMost + 1>()), "too many: extend tie()");
  if constexpr (takes<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return count<T, N - 1>();
  }
}

/// References to all fields.
template <typename T>
auto tie(const T& v) {
  constexpr std::size_t n = count<T>();
  if constexpr (n == 1) {
    const auto& [a] = v;
    return std::tie(a);
  } else if constexpr (n == 2) {
    const auto& [a, b] = v;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    const auto& [a, b, c] = v;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    const auto& [a, b, c, d] = v;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    const auto& [a, b, c, d, e] = v;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    const auto& [a, b, c, d, e, f] = v;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    const auto& [a, b, c, d, e, f, g] = v;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    const auto& [a, b, c, d, e, f, g, h] = v;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (n == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = v;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (n == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (n == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (n == 12) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (n == 13) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (n == 14) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (n == 15) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else {
    static_assert(n == kMost);
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  }
}

struct Describe {
  std::ostream& text;

  void operator()(bool value) const { text << ' ' << value; }
  void operator()(double value) const { text << ' ' << std::hexfloat << value; }
  template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) void operator()(T value) const {
    text << ' ' << static_cast<long long>(value);
  }
  template <typename T>
  requires std::is_enum_v<T>
  void operator()(T value) const { text << ' ' << static_cast<int>(value); }
  void operator()(const std::string& value) const { text << ' ' << value.size() << ':' << value; }
  template <typename T>
  void operator()(const std::optional<T>& value) const {
    text << (value ? " (" : " -");
    if (!value) return;
    (*this)(*value);
    text << " )";
  }
  template <typename T>
  void operator()(const std::vector<T>& values) const {
    text << " [";
    for (const T& value : values) (*this)(value);
    text << " ]";
  }
  template <typename... T>
  void operator()(const std::variant<T...>& value) const {
    text << " #" << value.index();
    std::visit(*this, value);
  }
  template <typename... T>
  void operator()(const std::tuple<T...>& values) const {
    std::apply([this](const auto&... value) { ((*this)(value), ...); }, values);
  }
  template <typename T>
  requires std::is_aggregate_v<T>
  void operator()(const T& value) const {
    text << " {";
    (*this)(tie(value));
    text << " }";
  }
};

}  // namespace fields

/// Writes a number, enum, string, optional, vector, variant, tuple or aggregate of these, with a space before
/// each number. Two values of one type give the same text if and only if they are equal.
template <typename T>
void describe(std::ostream& text, const T& value) {
  fields::Describe{text}(value);
}

}  // namespace zerorun
