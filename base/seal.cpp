#include "base/seal.h"

#include <bit>
#include <cstring>

namespace zerorun {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (; count > 0; --count) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void take(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
};

}  // namespace

uint64_t sip_hash(uint64_t first, uint64_t second, std::string_view text) {
  SipState state{first ^ 0x736f6d6570736575, second ^ 0x646f72616e646f6d, first ^ 0x6c7967656e657261,
                 second ^ 0x7465646279746573};
  const uint64_t length = text.size();
  for (; text.size() >= sizeof(uint64_t); text.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    state.take(word);
  }
  uint64_t last = 0;
  std::memcpy(&last, text.data(), text.size());
  state.take(last | length << 56);
  state.v2 ^= 0xff;
  state.rounds(4);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

Seal::Seal(std::string_view secret) : first_(sip_hash(0, 0, secret)), second_(sip_hash(0, 1, secret)) {}

uint64_t Seal::job() const {
  return sip_hash(first_, second_, "job");
}

// The text begins with the key's length, so that no two pairs of key and value give the same text.
uint64_t Seal::code(std::string_view key, std::string_view value) const {
  return sip_hash(first_, second_, std::to_string(key.size()) + " " + std::string(key) + std::string(value));
}

std::vector<uint8_t> Seal::close(std::string_view key, std::string_view value) const {
  const uint64_t own = code(key, value);
  std::vector<uint8_t> stored(sizeof own + value.size());
  std::memcpy(stored.data(), &own, sizeof own);
  std::memcpy(stored.data() + sizeof own, value.data(), value.size());
  return stored;
}

std::optional<std::string> Seal::open(std::string_view key, const std::vector<uint8_t>& stored) const {
  uint64_t found = 0;
  if (stored.size() < sizeof found) return std::nullopt;
  std::memcpy(&found, stored.data(), sizeof found);
  std::string value(stored.begin() + sizeof found, stored.end());
  if (found != code(key, value)) return std::nullopt;
  return value;
}

}  // namespace zerorun
