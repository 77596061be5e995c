// Events in a file that TensorBoard reads. Used by one thread.
//
// [Note: event file] The file is a sequence of TFRecords: length (8 bytes), masked CRC-32C of these bytes
// (4), data, masked CRC-32C of the data (4), numbers little-endian. Data is a protobuf Event: wall_time
// (field 1, double), step (2, varint), and file_version (3, string: "brain.Event:2", in the first record
// only) or summary (5). A summary has a value (field 1) with tag (1, string) and simple_value (2, float).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "monitor/append_file.h"
#include "monitor/event.h"

namespace zerorun {

class TensorBoardWriter {
 public:
  /// Creates `folder` and a new events.out.tfevents file in it. Throws UserError.
  explicit TensorBoardWriter(const std::filesystem::path& folder);

  /// Throws UserError.
  void write(const MonitorEvent& event);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

/// CRC-32C (Castagnoli).
uint32_t crc32c(std::string_view bytes);

}  // namespace zerorun
