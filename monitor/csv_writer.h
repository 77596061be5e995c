// Events in CSV files as DeepSpeed's csv_monitor names them: FOLDER/Train_Samples_lr.csv has the values of
// Train/Samples/lr, below the header "step,lr". A file that exists is continued. Files
// are open only during a write, since there may be many tags. Used by one thread.
#pragma once

#include <filesystem>

#include "monitor/event.h"

namespace zerorun {

class CsvWriter {
 public:
  /// Creates `folder`. Throws UserError if files cannot be created in it.
  explicit CsvWriter(std::filesystem::path folder);

  /// Throws UserError.
  void write(const MonitorEvent& event);

 private:
  std::filesystem::path folder_;
};

/// Creates the folder. Throws UserError if it cannot be created or no file can be created in it.
void make_writable_folder(const std::filesystem::path& folder);

}  // namespace zerorun
