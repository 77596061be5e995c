#include "base/port_holder.h"

#include <pwd.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

namespace zerorun {
namespace {

namespace fs = std::filesystem;

std::string name_of_user(uid_t user) {
  const passwd* entry = ::getpwuid(user);
  return entry != nullptr ? entry->pw_name : std::to_string(user);
}

bool has_socket(const fs::path& process, const std::string& inode) {
  const fs::path wanted = "socket:[" + inode + "]";
  std::error_code error;
  fs::directory_iterator descriptor(process / "fd", error);
  for (; !error && descriptor != fs::directory_iterator(); descriptor.increment(error)) {
    std::error_code ignored;
    if (fs::read_symlink(descriptor->path(), ignored) == wanted) return true;
  }
  return false;
}

// Empty if no process with this socket can be seen.
std::string process_with_socket(const std::string& inode) {
  std::error_code error;
  fs::directory_iterator process("/proc", error);
  for (; !error && process != fs::directory_iterator(); process.increment(error)) {
    const std::string pid = process->path().filename();
    if (!std::ranges::all_of(pid, [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    if (!has_socket(process->path(), inode)) continue;
    std::string name;
    std::getline(std::ifstream(process->path() / "comm"), name);
    struct stat owner {};
    if (::stat(process->path().c_str(), &owner) != 0) continue;
    return "process " + pid + " (" + name + ") of user " + name_of_user(owner.st_uid);
  }
  return {};
}

struct ListeningEntry {
  uid_t user;
  std::string inode;
};

// Reads /proc/net/tcp or /proc/net/tcp6.
std::optional<ListeningEntry> find_listener(const std::string& file, int port) {
  constexpr const char* kListens = "0A";
  std::ostringstream ending;
  ending << ':' << std::uppercase << std::hex << std::setw(4) << std::setfill('0') << port;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retries, timeout;
    ListeningEntry entry{};
    words >> number >> local >> remote >> state >> queues >> timer >> retries >> entry.user >> timeout >>
        entry.inode;
    if (words && state == kListens && local.ends_with(ending.str())) return entry;
  }
  return std::nullopt;
}

}  // namespace

std::string listener_on(int port) {
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::optional<ListeningEntry> entry = find_listener(file, port);
    if (!entry) continue;
    const std::string process = process_with_socket(entry->inode);
    return process.empty() ? "a process of user " + name_of_user(entry->user) : process;
  }
  return {};
}

std::string holder_of_abstract_name(const std::string& name) {
  std::ifstream lines("/proc/net/unix");
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with(" @" + name)) continue;
    std::istringstream words(line);
    std::string inode;
    for (int column = 0; column < 7; ++column) words >> inode;  // the seventh is the inode
    return process_with_socket(inode);
  }
  return {};
}

}  // namespace zerorun
