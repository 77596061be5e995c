// Tests reading from parts of parameters into other parts: which elements are which, compared with a search
// through all of them, and what is read of many files of a split parameter.
#include "checkpoint/part_map.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "checkpoint/saved_state.h"
#include "tests/checkpoint/counting_file_system.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using Random = std::mt19937_64;

int64_t any(Random& random, int64_t count) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
}

// Divides the indices of a dimension at random among `ranks`, each with up to three intervals.
SavedSplit some_split(Random& random, const std::vector<int64_t>& shape, int ranks) {
  SavedSplit split{.dim = any(random, static_cast<int64_t>(shape.size())), .parts = {}};
  split.parts.resize(static_cast<size_t>(ranks));
  const int64_t size = shape[static_cast<size_t>(split.dim)];
  for (int64_t begin = 0; begin < size;) {
    const int64_t numel = std::min(size - begin, 1 + any(random, size));
    split.parts[static_cast<size_t>(any(random, ranks))].push_back({begin, numel});
    begin += numel;
  }
  return split;
}

SavedParameter some_parameter(Random& random, const std::vector<int64_t>& shape) {
  std::vector<int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  SavedParameter parameter{.shape = shape, .strides = dense_strides(shape, order)};
  if (any(random, 3) > 0) parameter.split = some_split(random, shape, static_cast<int>(1 + any(random, 4)));
  return parameter;
}

std::vector<int> parts_in(const SavedParameter& parameter) {
  if (!parameter.split) return {kWhole};
  std::vector<int> parts(parameter.split->parts.size());
  std::iota(parts.begin(), parts.end(), 0);
  return parts;
}

// Of each element of a part, in memory order: its number in the whole parameter, in row-major order.
std::vector<int64_t> numbers_of(const SavedParameter& whole, int part) {
  const SavedParameter own = part_of(whole, part);
  std::vector<int64_t> numbers(static_cast<size_t>(numel_of(own)));
  for (size_t element = 0; element < numbers.size(); ++element) {
    int64_t number = 0;
    int64_t place = 0;  // in memory
    auto rest = static_cast<int64_t>(element);
    std::vector<int64_t> index(own.shape.size());
    for (size_t dim = own.shape.size(); dim-- > 0; rest /= own.shape[dim]) index[dim] = rest % own.shape[dim];
    for (size_t dim = 0; dim < own.shape.size(); ++dim) {
      place += index[dim] * own.strides[dim];
      int64_t of_whole = index[dim];
      if (whole.split && part != kWhole && whole.split->dim == static_cast<int64_t>(dim)) {
        for (const auto& [begin, numel] : whole.split->parts[static_cast<size_t>(part)]) {
          if (of_whole < numel) {
            of_whole += begin;
            break;
          }
          of_whole -= numel;
        }
      }
      number = number * whole.shape[dim] + of_whole;
    }
    numbers[static_cast<size_t>(place)] = number;
  }
  return numbers;
}

using Pairs = std::set<std::pair<int64_t, int64_t>>;

// A checkpoint of one parameter with a file for each part of `saved`, of the elements' numbers.
Manifest write_parts(const TemporaryFolder& folder, const SavedParameter& saved) {
  Manifest manifest{.tag = "t",
                    .world_size = static_cast<int>(saved.split->parts.size()),
                    .precision = "fp32",
                    .optimizer = "SGD",
                    .parameters = {{"w", saved}},
                    .files = {},
                    .numbers = {}};
  manifest.mesh = {.data = 1, .tensor = manifest.world_size, .pipeline = 1};
  manifest.numbers.resize(static_cast<size_t>(manifest.world_size));
  for (const int part : parts_in(saved)) {
    const std::vector<int64_t> numbers = numbers_of(saved, part);
    const std::vector<float> values(numbers.begin(), numbers.end());
    const std::string name = "part-" + std::to_string(part) + ".safetensors";
    StateRange range{.parameter = "w", .state = "value", .dtype = "F32"};
    range.numel = static_cast<int64_t>(values.size());
    range.part = part;
    manifest.files[name] = write_state_file(
        local_file_system(), folder / "",
        {name, {}, {{range, std::make_shared<MemorySnapshot>(std::as_bytes(std::span(values)))}}});
  }
  folder.write("manifest.json", to_json(manifest));
  return manifest;
}

// The bytes of the blocks that have an element of `wanted`.
std::map<std::string, int64_t> bytes_of_blocks(const Manifest& manifest, const std::vector<bool>& wanted) {
  std::map<std::string, int64_t> bytes;
  for (const auto& [name, file] : manifest.files) {
    const StateRange& range = file.ranges.front();
    const std::vector<int64_t> numbers = numbers_of(manifest.parameters.at("w"), range.part);
    std::set<int64_t> blocks;
    for (int64_t element = 0; element < range.numel; ++element) {
      if (wanted[static_cast<size_t>(numbers[static_cast<size_t>(element)])])
        blocks.insert((range.offset + element * 4) / kChecksumBlock);
    }
    for (const int64_t block : blocks)
      bytes[name] += std::min(kChecksumBlock, file.bytes - block * kChecksumBlock);
  }
  return bytes;
}

}  // namespace

TEST_CASE("The elements of a part in any order are found in any other part, each once") {
  const int tries = tries_all() ? 100000 : 5000;
  for (int seed = 0; seed < tries; ++seed) {
    CAPTURE(seed);
    Random random(static_cast<uint64_t>(seed));
    std::vector<int64_t> shape(static_cast<size_t>(any(random, 4)));
    for (int64_t& size : shape) size = 1 + any(random, 6);
    const bool is_scalar = shape.empty();
    const SavedParameter saved = is_scalar ? SavedParameter{} : some_parameter(random, shape);
    const SavedParameter own = is_scalar ? SavedParameter{} : some_parameter(random, shape);
    for (const int from_part : parts_in(saved)) {
      const std::vector<int64_t> there = numbers_of(saved, from_part);
      for (const int to_part : parts_in(own)) {
        const std::vector<int64_t> here = numbers_of(own, to_part);
        const auto numel_there = static_cast<int64_t>(there.size());
        const auto numel_here = static_cast<int64_t>(here.size());
        const int64_t from = any(random, numel_there + 1), to = any(random, numel_here + 1);
        const ElementRange a{from, from + any(random, numel_there - from + 1)};
        const ElementRange b{to, to + any(random, numel_here - to + 1)};
        Pairs expected, found;
        for (int64_t i = a.begin; i < a.end; ++i) {
          for (int64_t j = b.begin; j < b.end; ++j) {
            if (there[static_cast<size_t>(i)] == here[static_cast<size_t>(j)]) expected.emplace(i, j);
          }
        }
        size_t seen = 0;
        PartMap(saved, from_part, own, to_part).visit(a, b, [&](const ElementRows& rows) {
          for (int64_t row = 0; row < rows.sizes[0]; ++row) {
            for (int64_t column = 0; column < rows.sizes[1]; ++column, ++seen)
              found.emplace(rows.from + row * rows.from_strides[0] + column * rows.from_strides[1],
                            rows.to + row * rows.to_strides[0] + column * rows.to_strides[1]);
          }
        });
        CHECK(found == expected);
        CHECK(seen == expected.size());
      }
    }
  }
}

TEST_CASE("A reader of another split reads each block that has its elements once, of any number of files") {
  constexpr int64_t kRows = 600, kColumns = 2560;  // 6 MB
  const auto split = [](int64_t dim, int64_t size, int ranks) {
    SavedSplit split{.dim = dim, .parts = {}};
    for (int rank = 0; rank < ranks; ++rank) split.parts.push_back({{size / ranks * rank, size / ranks}});
    return split;
  };
  const std::pair<SavedSplit, SavedSplit> ways[] = {
      {split(0, kRows, 20), split(1, kColumns, 4)},
      {split(1, kColumns, 20), split(0, kRows, 4)},
      {split(0, kRows, 2), split(0, kRows, 3)},
  };
  for (const auto& [there, here] : ways) {
    CAPTURE(describe(there), describe(here));
    const TemporaryFolder folder;
    const SavedParameter whole{.shape = {kRows, kColumns}, .strides = {kColumns, 1}};
    SavedParameter saved = whole, own = whole;
    saved.split = there;
    own.split = here;
    const Manifest manifest = write_parts(folder, saved);
    for (const int part : {0, 2}) {
      const std::vector<int64_t> numbers = numbers_of(own, part);
      const auto begin = static_cast<int64_t>(numbers.size() / 5);
      std::vector<float> values(numbers.size() / 2, -1);
      const auto numel = static_cast<int64_t>(values.size());
      CountingFileSystem files;
      SavedState state(files, folder / "");
      CHECK(state.faults().empty());
      WantedElements wanted{.parameter = "w", .state = "value", .own = own, .part = part, .begin = begin};
      wanted.numel = numel;
      wanted.put = [&](const ElementRows& rows, std::span<const std::byte> from) {
        for (int64_t row = 0; row < rows.sizes[0]; ++row) {
          for (int64_t column = 0; column < rows.sizes[1]; ++column) {
            const int64_t at = row * rows.from_strides[0] + column * rows.from_strides[1];
            const int64_t to = rows.to + row * rows.to_strides[0] + column * rows.to_strides[1] - begin;
            std::memcpy(&values.at(static_cast<size_t>(to)), &from[static_cast<size_t>(at) * 4], 4);
          }
        }
      };
      state.read({&wanted, 1});
      std::vector<bool> is_wanted(static_cast<size_t>(numel_of(whole)));
      const auto first = numbers.begin() + begin;
      CHECK(std::equal(values.begin(), values.end(), first));
      std::for_each(first, first + numel,
                    [&](int64_t number) { is_wanted[static_cast<size_t>(number)] = true; });
      CHECK(files.bytes_by_file() == bytes_of_blocks(manifest, is_wanted));
    }
  }
}

}  // namespace zerorun::testing
