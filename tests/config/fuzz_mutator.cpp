// Mutates the inputs of the fuzz target. Half of the mutations change bytes, as libFuzzer does by default.
// The other half insert a key of the key table or replace a key's value by one of config_draft.h, so that the
// text remains a configuration.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "config/document.h"
#include "config/key_table.h"
#include "tests/config/config_draft.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace zerorun::test {
using namespace config;
namespace {

/// A position where the text can be changed.
struct Spot {
  std::string path;  // of the object or of the value
  std::size_t offset = 0;
  std::size_t length = 0;  // length of the value in bytes; 0: the spot follows the opening brace of an object
};

/// Adds a spot for the opening brace of each object, and for each value that is neither object nor array.
/// `path` is the path of `value`.
void add_spots(const Value& value, const std::string& path, std::vector<Spot>& spots) {
  if (value.kind == ValueKind::object) {
    spots.push_back({path, value.at.offset + 1, 0});
    for (const DocumentMember& member : value.members)
      add_spots(member.value, join_path(path, member.key), spots);
  } else if (value.kind == ValueKind::array) {
    for (const Value& item : value.items) {
      if (item.kind == ValueKind::object) add_spots(item, path, spots);
    }
  } else {
    spots.push_back({path, value.at.offset, value.literal.size()});
  }
}

/// Returns no spots if the text is malformed.
std::vector<Spot> spots_in(const std::string& text) {
  Diagnostics diagnostics("fuzz", text);
  std::vector<Spot> spots;
  if (const auto document = read_document(text, diagnostics)) add_spots(*document, "", spots);
  return spots;
}

template <typename List>
const typename List::value_type& one_of(const List& list, unsigned number) {
  return list[number % list.size()];
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  bool coin() { return (random_() & 1) != 0; }

  /// Returns `text` with one more key, or with another value at one of its keys.
  std::string change(const std::string& text) {
    const std::vector<Spot> spots = spots_in(text);
    if (spots.empty()) return "{" + member_of("") + "}";
    const Spot& spot = one_of(spots, random_());
    std::string changed = text;
    if (spot.length > 0) return changed.replace(spot.offset, spot.length, literal_at(spot.path));
    const auto next = text.find_first_not_of(" \t\r\n", spot.offset);
    const bool more = next != std::string::npos && text[next] != '}';
    return changed.insert(spot.offset, member_of(spot.path) + (more ? ", " : ""));
  }

 private:
  std::string member_of(const std::string& section) {
    std::vector<std::string_view> names = keys_of(section);
    if (names.empty() || random_() % 32 == 0) names = {name_of(one_of(key_facts(), random_())->path)};
    const std::string name(one_of(names, random_()));
    return quoted_literal(name) + ": " + literal_at(join_path(section, name));
  }

  std::string literal_at(const std::string& path) {
    const KeyFact* fact = find_key(path);
    if (!fact) return one_of(common_literals(), random_());
    return coin() || coin() ? one_of(likely_literals(*fact), random_())
                            : one_of(literals_for(*fact), random_());
  }

  std::minstd_rand random_;
};

}  // namespace
}  // namespace zerorun::test

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  zerorun::test::Mutator mutator(seed);
  if (mutator.coin()) return LLVMFuzzerMutate(data, size, max_size);
  const std::string changed = mutator.change(std::string(reinterpret_cast<const char*>(data), size));
  if (changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}
