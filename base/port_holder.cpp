#include "base/port_holder.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <memory>
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

// The addresses as /proc/net/tcp and tcp6 show them: words of 32 bits as this machine reads them.
std::vector<std::string> addresses_in_proc(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  std::vector<std::string> texts;
  for (const addrinfo* one = all.get(); one != nullptr; one = one->ai_next) {
    std::array<uint32_t, 4> words{};
    const bool v6 = one->ai_family == AF_INET6;
    const void* bytes =
        v6 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_addr)
           : &reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_addr;
    std::memcpy(words.data(), bytes, v6 ? 16 : 4);
    std::ostringstream text;
    for (size_t i = 0; i < (v6 ? 4 : 1); ++i)
      text << std::uppercase << std::hex << std::setw(8) << std::setfill('0') << words[i];
    texts.push_back(text.str());
  }
  return texts;
}

// Whether a socket bound to `local`, as /proc shows it, takes connections to one of `wanted`. An IPv4 address
// is the end of an IPv6 one.
bool serves(const std::string& local, const std::vector<std::string>& wanted) {
  const auto is_any = [](const std::string& one) { return one.find_first_not_of('0') == std::string::npos; };
  const auto meets = [&](const std::string& one) { return is_any(one) || local.ends_with(one); };
  return wanted.empty() || is_any(local) || std::ranges::any_of(wanted, meets);
}

// Reads /proc/net/tcp or /proc/net/tcp6. `wanted`: addresses_in_proc(); empty: any.
std::optional<ListeningEntry> find_listener(const std::string& file, const std::vector<std::string>& wanted,
                                            int port) {
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
    if (words && state == kListens && local.ends_with(ending.str()) &&
        serves(local.substr(0, local.size() - ending.str().size()), wanted))
      return entry;
  }
  return std::nullopt;
}

}  // namespace

std::string listener_on(const std::string& address, int port) {
  const std::vector<std::string> wanted =
      address.empty() ? std::vector<std::string>() : addresses_in_proc(address);
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::optional<ListeningEntry> entry = find_listener(file, wanted, port);
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
