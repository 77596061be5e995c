// libFuzzer target for manifests of split parameters (`scripts/fuzz manifest`).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/checkpoint/hostile_manifest.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Three of four mutations keep the text JSON.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (seed % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::mt19937_64 random(seed);
  const std::string text =
      zerorun::testing::mutate_manifest(std::string(reinterpret_cast<const char*>(data), size), random);
  if (text.size() > max_size) return size;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zerorun::testing::read_manifest(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
