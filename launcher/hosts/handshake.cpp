#include "launcher/hosts/handshake.h"

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "base/sockets.h"

namespace zerorun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr GreetingWords kAgentWords = {"zerorun agent 1\n", "launcher", "agent"};
constexpr size_t kTokenBytes = 16;
constexpr std::chrono::milliseconds kRetry(200);
constexpr std::chrono::seconds kQuietWait(5);  // an attempt may take as long

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
    const Clock::time_point deadline = Clock::now() + kGreetingPatience;
    UniqueFd fd;
    const int error = connect_socket(fd, *one, deadline);
    if (error == 0 && greet(fd.get(), ticket, kAgentWords, deadline))
      return {std::move(fd), {}, Found::stranger};
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
  return in_hexadecimal(random_bytes(kTokenBytes));
}

bool is_token(const std::string& text) {
  return text.size() == 2 * kTokenBytes && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

AgentGreeting::AgentGreeting(UniqueFd fd, const Seal& ticket)
    : Greeting(std::move(fd), ticket, kAgentWords) {}

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
