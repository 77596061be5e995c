// Tests the authentication code by which ranks recognise values that their own job has written.
#include "base/seal.h"

#include <catch2/catch.hpp>
#include <string>

namespace zerorun {

TEST_CASE("seal: SipHash-2-4 gives the hashes of its authors' test vectors") {
  const uint64_t first = 0x0706050403020100;
  const uint64_t second = 0x0f0e0d0c0b0a0908;
  std::string text;
  const uint64_t wanted[] = {0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
                             0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
                             0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
                             0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5};
  for (const uint64_t hash : wanted) {
    CHECK(sip_hash(first, second, text) == hash);
    text += static_cast<char>(text.size());
  }
}

TEST_CASE("seal: opens what the same job has closed under the same key, and nothing else") {
  const Seal seal("secret");
  for (const std::string& value : {std::string(), std::string("word"), std::string("\0\n", 2)}) {
    const std::vector<uint8_t> stored = seal.close("key", value);
    CHECK(Seal("secret").open("key", stored) == value);
    CHECK_FALSE(seal.open("other key", stored));
    CHECK_FALSE(Seal("secrets").open("key", stored));
    for (size_t byte = 0; byte < stored.size(); ++byte) {
      std::vector<uint8_t> changed = stored;
      changed[byte] ^= 1;
      CHECK_FALSE(seal.open("key", changed));
    }
    std::vector<uint8_t> longer = stored;
    longer.push_back(0);
    CHECK_FALSE(seal.open("key", longer));
  }
  CHECK_FALSE(seal.open("key", {}));
  CHECK_FALSE(seal.open("key", {'c', 'p', 'u'}));
  CHECK_FALSE(seal.open("ke", seal.close("key", "x")));
  CHECK(seal.job() == Seal("secret").job());
  CHECK(seal.job() != Seal("secrets").job());
}

}  // namespace zerorun
