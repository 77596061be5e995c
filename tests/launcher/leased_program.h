// A program on which this process holds a write lease: as long as it exists, the system lets execve() of the
// program wait, as it does for a file on a slow server. Tests only.
#pragma once

#include <fcntl.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

class LeasedProgram {
 public:
  LeasedProgram() {
    std::filesystem::copy("/bin/true", path());
    file_ = UniqueFd(::open(path().c_str(), O_RDWR | O_CLOEXEC));
    std::signal(SIGIO, SIG_IGN);  // the system asks for the lease with it
    is_leased_ = ::fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
  }

  std::string path() const { return folder_ / "program"; }
  /// False in a file system without leases.
  bool is_leased() const { return is_leased_; }

 private:
  TemporaryFolder folder_;
  UniqueFd file_;
  bool is_leased_ = false;
};

}  // namespace zerorun::testing
