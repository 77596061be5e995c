// Authenticates the values in a job's store. Each value carries a 64-bit code (SipHash-2-4) that can be
// computed only with the job's secret. Nothing is encrypted. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

class Seal {
 public:
  /// `secret` is known to all ranks of the job. Anyone who guesses it can forge values.
  explicit Seal(std::string_view secret);

  /// A number that identifies the job without revealing the secret.
  uint64_t job() const;

  /// Returns the bytes to store under `key` for `value`: the code, then the value.
  std::vector<uint8_t> close(std::string_view key, std::string_view value) const;
  /// Returns the value in `stored`, the bytes found under `key`. Returns nothing if they were not written by
  /// a rank of this job.
  std::optional<std::string> open(std::string_view key, const std::vector<uint8_t>& stored) const;

 private:
  uint64_t code(std::string_view key, std::string_view value) const;

  uint64_t first_;
  uint64_t second_;
};

/// SipHash-2-4 of `text`; `first` and `second` are the two halves of the key.
uint64_t sip_hash(uint64_t first, uint64_t second, std::string_view text);

}  // namespace zerorun
