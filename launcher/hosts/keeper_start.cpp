// How an agent starts the keeper of its host.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/held_memory.h"
#include "base/unique_fd.h"
#include "launcher/hosts/keeper.h"

namespace zerorun::launcher {
namespace {

using KeeperClock = std::chrono::steady_clock;

// Longer than a keeper tries to connect.
constexpr std::chrono::seconds kKeeperStartPatience(20);
constexpr int kKeeperStartTick = 100;  // ms

std::pair<UniqueFd, UniqueFd> keeper_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("cannot open a pipe: ") + std::strerror(errno));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// In a child of the agent. Its own child becomes the keeper, which so is no child of the agent.
[[noreturn]] void become_keeper(const std::vector<char*>& words, int in, int out) {
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(nothing, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // So that the folder can be unmounted.
  if (::chdir("/") == 0) ::execv("/proc/self/exe", words.data());
  const char* problem = std::strerror(errno);
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, problem, std::strlen(problem));
  ::_exit(127);
}

// What a keeper says before it closes the pipe.
std::string word_of_keeper(int pipe, const std::function<void()>& meanwhile) {
  const auto deadline = KeeperClock::now() + kKeeperStartPatience;
  std::string word;
  while (KeeperClock::now() < deadline) {
    pollfd entry = {pipe, POLLIN, 0};
    if (::poll(&entry, 1, kKeeperStartTick) == 1) {
      char buffer[1024];
      const ssize_t size = ::read(pipe, buffer, sizeof buffer);
      if (size == 0) return word.empty() ? "it has ended" : word;
      if (size > 0) word.append(buffer, static_cast<size_t>(size));
    }
    meanwhile();
  }
  return "no word from it for " + std::to_string(kKeeperStartPatience.count()) + " s";
}

}  // namespace

std::string provide_keeper(const NodeOrder& order, const std::vector<std::string>& addresses,
                           const std::function<void()>& meanwhile) {
  if (is_held_memory(order.keeper.there)) return {};
  std::string list;
  for (const std::string& address : addresses) list += (list.empty() ? "" : ",") + address;
  const auto ranks = order.nodes[static_cast<size_t>(order.node)].slots.size();
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe"),
                                    kKeeperCommand,
                                    list,
                                    std::to_string(order.keeper.port),
                                    std::to_string(order.node),
                                    std::to_string(ranks),
                                    order.keeper.tag};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  auto [ticket_end, ticket_source] = keeper_pipe();
  auto [word_end, word_source] = keeper_pipe();
  const std::string ticket = order.keeper.ticket + "\n";
  if (::write(ticket_source.get(), ticket.data(), ticket.size()) != static_cast<ssize_t>(ticket.size()))
    throw Error("cannot write the ticket of the keeper of held memory");
  const pid_t child = ::fork();
  if (child < 0) throw Error(std::string("cannot start the keeper of held memory: ") + std::strerror(errno));
  if (child == 0) become_keeper(pointers, ticket_end.get(), word_source.get());
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  word_source.reset();
  const std::string word = word_of_keeper(word_end.get(), meanwhile);
  if (word != kKeeperReady) throw Error("the keeper of held memory (--hold_every) cannot start: " + word);
  return order.keeper.tag;
}

}  // namespace zerorun::launcher
