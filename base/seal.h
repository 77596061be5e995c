// Authenticates the values in a job's store: each value carries a code that only ranks which know the job's
// secret can compute (SipHash-2-4, 64 bits). It does not encrypt. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

class Seal {
 public:
  /// `secret`: known to all ranks of the job. Anyone who can guess it can write in their name.
  explicit Seal(std::string_view secret);

  /// Identifies the job without revealing the secret.
  uint64_t job() const;

  /// `value` in the form in which it is stored under `key`.
  std::vector<uint8_t> close(std::string_view key, std::string_view value) const;
  /// The value that a rank of this job stored under `key`; nothing if `stored` does not come from such a
  /// rank.
  std::optional<std::string> open(std::string_view key, const std::vector<uint8_t>& stored) const;

 private:
  uint64_t code(std::string_view key, std::string_view value) const;

  uint64_t first_;
  uint64_t second_;
};

/// SipHash-2-4 of `text` under the key of these two halves.
uint64_t sip_hash(uint64_t first, uint64_t second, std::string_view text);

}  // namespace zerorun
