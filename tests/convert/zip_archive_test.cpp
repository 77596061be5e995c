// Tests the reader of zip archives. Valid archives use each feature that torch.save uses. Damaged archives
// have a wrong length or offset, a flipped bit, or are cut off.
#include "convert/zip_archive.h"

#include <catch2/catch.hpp>

#include "tests/convert/zip_builder.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

using Catch::Matchers::Contains;

std::string refusal(const TemporaryFolder& folder, const std::string& bytes) {
  const auto path = folder.write("x.pt", bytes);
  return user_error([&] {
    const ZipArchive archive(local_file_system(), path);
    for (const auto& [name, entry] : archive.entries()) archive.verify(name);
  });
}

std::string text_of(const ZipArchive& archive, const std::string& name) {
  const ZipEntry& entry = archive.entries().at(name);
  std::string text(static_cast<size_t>(entry.bytes), '\0');
  archive.read(entry, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

ZipBuilder two_entries() {
  return {.entries = {{"a/data.pkl", "first"}, {"a/data/0", "second entry"}}};
}

}  // namespace

TEST_CASE("Entries of an archive are read, with 32 and 64 bits, a comment, and aligned data") {
  const TemporaryFolder folder;
  ZipBuilder zip = two_entries();
  SECTION("32 bits") {}
  SECTION("64 bits") {
    zip.in_64_bits = true;
  }
  SECTION("a comment") {
    zip.comment = "saved by hand";
  }
  SECTION("aligned") {
    zip.local_extra = std::string("FB\x04\x00ZZZZ", 8);
  }
  const ZipArchive archive(local_file_system(), folder.write("x.pt", zip.build()));
  CHECK(archive.entries().size() == 2);
  CHECK(text_of(archive, "a/data.pkl") == "first");
  CHECK(text_of(archive, "a/data/0") == "second entry");
  archive.verify("a/data/0");
}

TEST_CASE("An archive that is compressed, encrypted, overlapping or has a name twice is refused") {
  const TemporaryFolder folder;
  ZipBuilder zip = two_entries();
  std::string expected;
  SECTION("compressed") {
    zip.method = 8;
    expected = "compressed";
  }
  SECTION("encrypted") {
    zip.flags = 1;
    expected = "encrypted";
  }
  SECTION("overlapping") {
    zip.overlapping = true;
    expected = "overlap";
  }
  SECTION("a name twice") {
    zip.entries.push_back(zip.entries.front());
    expected = "appears twice";
  }
  CHECK_THAT(refusal(folder, zip.build()), Contains("x.pt") && Contains(expected));
}

TEST_CASE("An archive that is cut off or has a flipped bit is refused, or has the original data") {
  const TemporaryFolder folder;
  for (const bool in_64_bits : {false, true}) {
    ZipBuilder zip = two_entries();
    zip.in_64_bits = in_64_bits;
    const std::string whole = zip.build();
    for (size_t length = 0; length < whole.size(); ++length)
      CHECK_THAT(refusal(folder, whole.substr(0, length)), Contains("x.pt"));
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int bit : {0, 3, 7}) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
        const auto path = folder.write("x.pt", damaged);
        // A flipped bit is an error, or the data are the same: the bit may be in a name or an unused field.
        user_error([&] {
          const ZipArchive archive(local_file_system(), path);
          for (const auto& [name, entry] : archive.entries()) {
            archive.verify(name);
            const std::string text = text_of(archive, name);
            CHECK((text == "first" || text == "second entry"));
          }
        });
      }
    }
  }
}

TEST_CASE("Lengths and offsets beyond the file are refused before memory is taken for them") {
  const TemporaryFolder folder;
  ZipBuilder zip = two_entries();
  zip.in_64_bits = true;
  const std::string whole = zip.build();
  for (size_t at = 0; at + 8 <= whole.size(); ++at) {
    std::string damaged = whole;
    const uint64_t huge = 0x7fffffffffffffffULL;
    std::memcpy(damaged.data() + at, &huge, sizeof(huge));
    CHECK_THAT(refusal(folder, damaged), Contains("x.pt") || Contains("no error"));
  }
}

}  // namespace zerorun::testing
