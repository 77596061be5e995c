#include "launcher/handshake.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hexadecimal.h"

namespace zerorun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kGreeting = "zerorun agent 1\n";
constexpr size_t kNumber = 16;
constexpr size_t kCode = sizeof(uint64_t);
constexpr std::chrono::seconds kPatience(5);  // for one greeting
constexpr std::chrono::milliseconds kRetry(200);
constexpr std::chrono::seconds kQuietWait(5);  // an attempt may take as long

std::string random_number() {
  std::string bytes(kNumber, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(std::string("the system gives no random numbers: ") + std::strerror(errno));
  }
  return bytes;
}

std::string code(const Seal& ticket, std::string_view role, const std::string& numbers) {
  const std::vector<uint8_t> bytes = ticket.close(std::string(role) + numbers, "");
  return {bytes.begin(), bytes.end()};
}

// The agent waits in blocking calls like this one, because it has nothing else to do.

bool wait_for(int fd, short events, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd entry = {fd, events, 0};
  return left > 0 && ::poll(&entry, 1, static_cast<int>(left)) == 1;
}

bool send_all(int fd, std::string_view bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::optional<std::string> receive(int fd, size_t size, Clock::time_point deadline) {
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    if (!wait_for(fd, POLLIN, deadline)) return std::nullopt;
    const ssize_t more = ::recv(fd, bytes.data() + done, size - done, 0);
    if (more < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (more <= 0) return std::nullopt;
    done += more;
  }
  return bytes;
}

// Returns 0, or the error.
int connect_to(UniqueFd& fd, const addrinfo& address, Clock::time_point deadline) {
  fd = UniqueFd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) return errno;
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(fd.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool greet(int fd, const Seal& ticket, Clock::time_point deadline) {
  const std::string own = random_number();
  if (!send_all(fd, std::string(kGreeting) + own)) return false;
  const std::optional<std::string> answer = receive(fd, kNumber + kCode, deadline);
  if (!answer) return false;
  const std::string numbers = own + answer->substr(0, kNumber);
  if (answer->substr(kNumber) != code(ticket, "launcher", numbers)) return false;
  return send_all(fd, code(ticket, "agent", numbers));
}

// What is at an address instead of the launcher. The later ones say more.
enum class Found { no_name, no_way, no_listener, stranger };

struct Attempt {
  UniqueFd fd;
  std::string failure;  // if `fd` is not open
  Found found = Found::no_name;
};

Attempt try_address(const std::string& name, int port, const Seal& ticket) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* addresses = nullptr;
  const int unknown = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &addresses);
  if (unknown != 0) return {{}, gai_strerror(unknown), Found::no_name};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(addresses, freeaddrinfo);
  Attempt attempt;
  for (const addrinfo* one = addresses; one != nullptr; one = one->ai_next) {
    const Clock::time_point deadline = Clock::now() + kPatience;
    UniqueFd fd;
    const int error = connect_to(fd, *one, deadline);
    if (error == 0 && greet(fd.get(), ticket, deadline)) return {std::move(fd), {}, Found::stranger};
    const Found found = error == 0              ? Found::stranger
                        : error == ECONNREFUSED ? Found::no_listener
                                                : Found::no_way;
    if (found < attempt.found) continue;
    attempt.failure = error == 0 ? "no launcher of this job answers there" : std::strerror(error);
    attempt.found = found;
  }
  return attempt;
}

const char* remedy_for(Found found) {
  switch (found) {
    case Found::no_name:
      return "this host does not know the name: give an address of the first launcher's host that it knows";
    case Found::no_way:
      return "a firewall between the hosts must let this port through, and --master_addr, --rdzv_endpoint or "
             "the hostfile must name an address that this host reaches";
    case Found::no_listener:
      return "nothing listens there, or a firewall refuses: the first launcher has not started yet or has "
             "ended, or the address is another host's (--master_addr, --rdzv_endpoint, the hostfile)";
    case Found::stranger:
      break;
  }
  return "what listens there belongs to another job or another program; give all launchers of a job the same "
         "ZERORUN_JOB, --rdzv_id and port";
}

}  // namespace

std::string random_token() {
  return in_hexadecimal(random_number());
}

AgentGreeting::AgentGreeting(UniqueFd fd, const Seal& ticket)
    : fd_(std::move(fd)), ticket_(ticket), deadline_(Clock::now() + kPatience) {
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
}

bool AgentGreeting::service() {
  if (Clock::now() >= deadline_) return false;
  // Reads no more than this stage needs: frames may follow the code at once, and FrameSocket reads them.
  const size_t wanted = stage_ == Stage::greeting ? kGreeting.size() + kNumber : kCode;
  std::array<char, 64> buffer;
  const ssize_t size = ::recv(fd_.get(), buffer.data(), wanted - incoming_.size(), 0);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size == 0) return false;
  incoming_.append(buffer.data(), size);
  if (!kGreeting.starts_with(incoming_.substr(0, kGreeting.size())) && stage_ == Stage::greeting)
    return false;
  if (incoming_.size() < wanted) return true;
  if (stage_ == Stage::greeting) return answer_greeting();
  const bool known = incoming_ == code(ticket_, "agent", numbers_);
  if (known) stage_ = Stage::done;
  return known;
}

bool AgentGreeting::answer_greeting() {
  const std::string own = random_number();
  numbers_ = incoming_.substr(kGreeting.size()) + own;
  incoming_.clear();
  stage_ = Stage::code;
  return send_all(fd_.get(), own + code(ticket_, "launcher", numbers_));
}

UniqueFd AgentGreeting::take() {
  return std::move(fd_);
}

UniqueFd connect_to_launcher(const std::vector<std::string>& addresses, int port, const Seal& ticket,
                             Clock::time_point deadline, const std::function<bool()>& is_wanted,
                             const std::function<void(const std::string&)>& tell_of_wait) {
  const Clock::time_point told_at = Clock::now() + kQuietWait;
  bool told = !tell_of_wait;
  bool met_stranger = false;  // in any attempt
  std::string problem;
  do {
    std::string failures;
    Found found = met_stranger ? Found::stranger : Found::no_name;
    for (const std::string& address : addresses) {
      Attempt attempt = try_address(address, port, ticket);
      if (attempt.fd.is_open()) return std::move(attempt.fd);
      found = std::max(found, attempt.found);
      failures +=
          (failures.empty() ? "" : "; ") + address + ":" + std::to_string(port) + ": " + attempt.failure;
    }
    met_stranger = found == Found::stranger;
    problem = "the launcher of the job (" + failures + "): " + remedy_for(found);
    if (!told && Clock::now() >= told_at && Clock::now() < deadline) {
      told = true;
      tell_of_wait("cannot connect yet to " + problem);
    }
    std::this_thread::sleep_for(kRetry);
  } while (Clock::now() < deadline && is_wanted());
  throw Error("cannot connect to " + problem);
}

}  // namespace zerorun::launcher
