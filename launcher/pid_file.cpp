#include "launcher/pid_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/unique_fd.h"

namespace zerorun::launcher {
namespace {

void remove_old(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return;
  if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid()) {
    throw UserError("--save_pid: " + path +
                    " exists and is no regular file of this user: remove it, or start without --save_pid");
  }
  ::unlink(path.c_str());
}

}  // namespace

PidFile::PidFile(const std::string& folder)
    : path_(folder + "/" + std::to_string(::getpid()) + ".deepspeed") {
  remove_old(path_);
  const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  const std::string text = std::to_string(::getpid());
  if (!file.is_open() || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const std::string reason = std::strerror(errno);
    if (file.is_open()) ::unlink(path_.c_str());
    throw UserError("--save_pid: cannot write " + path_ + ": " + reason);
  }
}

PidFile::~PidFile() {
  ::unlink(path_.c_str());
}

}  // namespace zerorun::launcher
