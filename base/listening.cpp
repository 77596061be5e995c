#include "base/listening.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/port_holder.h"
#include "base/route.h"

namespace zerorun {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

template <typename Refusal = UserError>
[[noreturn]] void refuse(const std::string& address, int port, const std::string& reason) {
  throw Refusal(
      "cannot listen on " + (address.empty() ? "any address" : address) + ":" + std::to_string(port) +
      ", where the ranks are to meet (--master_addr, --master_port; MASTER_ADDR, MASTER_PORT): " + reason);
}

// What to do if the port is in use.
constexpr char kChooseAnother[] =
    "; choose another one, or leave --master_port out, and zerorun chooses a free one";
constexpr char kChooseForAll[] =
    "; choose another one, the same for all launchers of the job (--master_port, --rdzv_endpoint)";
// The launcher may have chosen the port itself. Which of the two is true, rank 0 does not know.
constexpr char kStartAgain[] =
    ", which took it before rank 0 listened, although zerorun had reserved it; start the job again: without "
    "--master_port zerorun then chooses another one";

[[noreturn]] void refuse_taken(const std::string& address, int port, const char* remedy) {
  const std::string holder = listener_on(address, port);
  refuse<PortTaken>(
      address, port,
      "the port is in use, by " + (holder.empty() ? "another job or another program" : holder) + remedy);
}

// `error`: the errno of bind() or listen().
[[noreturn]] void refuse(const std::string& address, int port, int error, const char* remedy) {
  if (error == EADDRINUSE && port == 0) {
    refuse<PortTaken>(address, port,
                      "no port is free: other programs of this host use all of those that the system gives "
                      "(sysctl net.ipv4.ip_local_port_range)");
  }
  if (error == EADDRINUSE) refuse_taken(address, port, remedy);
  refuse(address, port,
         error == EADDRNOTAVAIL ? "the address is not this machine's; give one that is"
         : error == EACCES      ? "the system gives this port only to root; choose one from 1024 on"
                                : std::strerror(error));
}

Addresses resolve(const std::string& address, int family, int port) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* name = address.empty() ? nullptr : address.c_str();
  const int error = getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
  if (error != 0) refuse(address, port, gai_strerror(error));
  return {found, freeaddrinfo};
}

// The address to which the socket is bound; empty: all interfaces.
std::string address_of(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  auto* plain = reinterpret_cast<sockaddr*>(&name);
  if (getsockname(fd, plain, &size) != 0) return "";
  const std::string address = numeric_address(plain, size);
  return address == "0.0.0.0" || address == "::" ? "" : address;
}

int port_of(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  if (name.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port);
  if (name.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&name)->sin6_port);
  return 0;
}

bool listens(int fd) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

enum class Then { listen, wait };

// If the result is not open, errno says why.
UniqueFd try_address(const addrinfo& address, bool both_families, Then then) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return fd;
  const int yes = 1;
  const int no = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // connections of an earlier job linger
  if (both_families) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 &&
      (then == Then::wait || listen(fd.get(), SOMAXCONN) == 0)) {
    return fd;
  }
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

// A name may have several addresses. If the port is in use on one of them, the remaining addresses are not
// tried, because ranks might connect to that address and reach another program.
ListeningSocket open_on(const std::string& address, int port, Then then, const char* remedy) {
  const bool all = address.empty();
  int error = 0;
  for (const int family : all ? std::vector{AF_INET6, AF_INET} : std::vector{AF_UNSPEC}) {
    const Addresses addresses = resolve(address, family, port);
    for (const addrinfo* one = addresses.get(); one != nullptr && error != EADDRINUSE; one = one->ai_next) {
      UniqueFd fd = try_address(*one, all && family == AF_INET6, then);
      error = errno;
      if (!fd.is_open()) continue;
      const int chosen = port_of(fd.get());
      return {std::move(fd), chosen, {}};
    }
  }
  refuse(address, port, error, remedy);
}

// A name in the abstract namespace that stands for the port.
std::string claim_name(const std::string& address, int port) {
  return "zerorun port " + address + ":" + std::to_string(port);
}

// Binds a Unix socket to the name. If the result is not open, errno says why.
UniqueFd claim(const std::string& text) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const size_t length = std::min(text.size(), sizeof name.sun_path - 1);
  std::memcpy(name.sun_path + 1, text.data(), length);  // a name after a 0 byte is abstract: no file
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&name), size) == 0) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

// SO_REUSEADDR lets two sockets be bound to one port as long as neither listens. To refuse a second
// reservation, a Unix socket is bound to a name for the port in the abstract namespace. Closing the socket
// frees the name.
ListeningSocket reserve(const std::string& address, int port, const char* remedy) {
  constexpr int kTries = 16;           // any user may bind the name of a free port
  std::vector<ListeningSocket> taken;  // kept open, so that the system does not choose their ports again
  while (true) {
    ListeningSocket reserved = open_on(address, port, Then::wait, remedy);
    const std::string name = claim_name(address, reserved.port);
    reserved.claim = claim(name);
    if (reserved.claim.is_open()) return reserved;
    const int error = errno;
    if (port == 0 && error == EADDRINUSE && taken.size() + 1 < kTries) {
      taken.push_back(std::move(reserved));
      continue;
    }
    if (error != EADDRINUSE) refuse(address, reserved.port, std::strerror(error));
    std::string holder = holder_of_abstract_name(name);
    holder = "another job" + (holder.empty() ? "" : ", " + holder);
    refuse<PortTaken>(address, reserved.port,
                      port == 0 ? "each of the " + std::to_string(kTries) +
                                      " free ports that the system gave is reserved, the last one by " +
                                      holder + "; start the job again"
                                : "the port is in use, by " + holder + remedy);
  }
}

}  // namespace

ListeningSocket listen_on(const std::string& address, int port) {
  return open_on(address, port, Then::listen, kChooseAnother);
}

ListeningSocket reserve_port(const std::string& address, int port) {
  return reserve(address, port, kChooseAnother);
}

ListeningSocket listen_as_first(const std::string& address, int port) {
  ListeningSocket reserved = reserve(address, port, kChooseForAll);
  if (listen(reserved.fd.get(), SOMAXCONN) != 0) refuse(address, reserved.port, errno, kChooseForAll);
  return reserved;
}

UniqueFd take_inherited_socket(int port, const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return {};
  const std::string_view text = value;
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number > 2;
  // A descriptor with close-on-exec set was not inherited through exec: this process or its parent has taken
  // over the socket already.
  if (!is_number || port_of(number) != port || fcntl(number, F_GETFD) != 0) return {};
  fcntl(number, F_SETFD, FD_CLOEXEC);
  UniqueFd socket(number);
  if (listens(number) || listen(number, SOMAXCONN) == 0) return socket;
  const bool taken = errno == EADDRINUSE;
  const std::string address = address_of(number);
  socket.reset();  // else it would be the listener that is looked for
  if (taken && !this_process_listens_on(port)) refuse_taken(address, port, kStartAgain);
  return {};
}

bool this_process_listens_on(int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int number = -1;
    const std::string name = entry.path().filename();
    std::from_chars(name.data(), name.data() + name.size(), number);
    if (listens(number) && port_of(number) == port) return true;
  }
  return false;
}

}  // namespace zerorun
