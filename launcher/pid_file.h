// The file of --save_pid, which other programs read to find the launcher.
#pragma once

#include <string>

namespace zerorun::launcher {

/// The file FOLDER/PID.deepspeed with the launcher's process number. It exists as long as this object.
class PidFile {
 public:
  /// An old file of this user is removed first. Throws UserError if something else has the name, such as a
  /// link or another user's file: everybody may write to /tmp, and whoever made it chose what it leads to.
  explicit PidFile(const std::string& folder);
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
};

}  // namespace zerorun::launcher
