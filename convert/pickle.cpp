#include "convert/pickle.h"

#include "base/error.h"
#include "convert/pickle_arena.h"
#include "convert/pickle_machine.h"

namespace zerorun::convert {

PickleKind PickleValue::kind() const {
  return arena_->at(index_).kind;
}
bool PickleValue::boolean() const {
  return arena_->of_kind(index_, PickleKind::boolean).boolean;
}
int64_t PickleValue::integer() const {
  return arena_->of_kind(index_, PickleKind::integer).integer;
}
double PickleValue::real() const {
  return arena_->of_kind(index_, PickleKind::real).real;
}
const std::string& PickleValue::text() const {
  return arena_->at(index_).text;
}
size_t PickleValue::size() const {
  return arena_->at(index_).items.size();
}
PickleValue PickleValue::item(size_t index) const {
  return {*arena_, arena_->at(index_).items.at(index)};
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  if (!is(PickleKind::dict)) return std::nullopt;
  const std::vector<uint32_t>& items = arena_->at(index_).items;
  for (size_t index = items.size(); index >= 2; index -= 2) {
    const PickleNode& found = arena_->at(items[index - 2]);
    if (found.kind == PickleKind::text && found.text == key) return PickleValue(*arena_, items[index - 1]);
  }
  return std::nullopt;
}

PickleValue PickleValue::callee() const {
  return {*arena_, arena_->of_kind(index_, PickleKind::object).callee};
}
PickleValue PickleValue::arguments() const {
  ZR_CHECK(arena_->at(index_).arguments != kNoNode, "a pickled value without arguments");
  return {*arena_, arena_->at(index_).arguments};
}
std::optional<PickleValue> PickleValue::state() const {
  const uint32_t state = arena_->at(index_).state;
  if (state == kNoNode) return std::nullopt;
  return PickleValue(*arena_, state);
}
bool PickleValue::calls(std::string_view global) const {
  return is(PickleKind::object) && callee().is(PickleKind::global) && callee().text() == global;
}

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& place)
    : arena_(std::make_unique<PickleArena>()) {
  root_ = run_pickle(bytes, place, *arena_);
}
Pickle::~Pickle() = default;
Pickle::Pickle(Pickle&&) noexcept = default;
Pickle& Pickle::operator=(Pickle&&) noexcept = default;
PickleValue Pickle::root() const {
  return {*arena_, root_};
}

}  // namespace zerorun::convert
