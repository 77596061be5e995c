// What a rank can tell its own job's words by: a code beside each value in the store that only those can make
// who know the job's secret (SipHash-2-4, 64 bits). It keeps nothing secret. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

class Seal {
 public:
  /// `secret`: what all ranks of the job know. Who can guess it can speak for them.
  explicit Seal(std::string_view secret);

  /// Tells jobs apart, and nothing of the secret.
  uint64_t job() const;

  /// `value` as it is stored under `key`.
  std::vector<uint8_t> close(std::string_view key, std::string_view value) const;
  /// The value that a rank of this job has stored under `key`; none if it was somebody else.
  std::optional<std::string> open(std::string_view key, const std::vector<uint8_t>& stored) const;

 private:
  uint64_t code(std::string_view key, std::string_view value) const;

  uint64_t first_;
  uint64_t second_;
};

/// SipHash-2-4 of `text` under the key of these two halves.
uint64_t sip_hash(uint64_t first, uint64_t second, std::string_view text);

}  // namespace zerorun
