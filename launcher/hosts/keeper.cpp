#include "launcher/hosts/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/held_memory.h"
#include "base/held_server.h"
#include "base/listening.h"
#include "base/sockets.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/machine.h"

namespace zerorun::launcher {
namespace {

// The launcher listens before it starts agents.
constexpr std::chrono::seconds kKeeperPatience(15);
// The server's deadlines are looked at this often.
constexpr int kKeeperTick = 1000;  // ms

// False once the agent that waits for this keeper's word has ended.
bool is_awaited() {
  pollfd entry = {STDOUT_FILENO, 0, 0};
  return ::poll(&entry, 1, 0) == 0;
}

// To the agent, which then closes the pipe.
void say(std::string_view word) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, word.data(), word.size());
}

void leave_the_agent() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  ::close(nothing);
}

// Each rank takes two files, and each reader a connection.
void raise_limit_of_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// Returns when the launcher says that the job is over, or is gone.
void keep(FrameSocket& launcher, HeldServer& server) {
  while (!launcher.is_closed()) {
    std::vector<pollfd> entries;
    launcher.append_poll_entry(entries);
    server.append_poll_entries(entries);
    ::poll(entries.data(), entries.size(), kKeeperTick);
    launcher.service();
    while (const std::optional<Frame> frame = launcher.next()) {
      if (frame->type == FrameType::token) server.set_token(frame->payload);
      if (frame->type == FrameType::end || frame->type == FrameType::refusal) return;
    }
    server.service();
  }
}

void run(const std::vector<std::string>& words) {
  std::string ticket_text;
  std::getline(std::cin, ticket_text);
  raise_limit_of_files();
  const Seal ticket(ticket_text);
  UniqueFd connection = connect_to_launcher(split_list(words.at(0)), std::stoi(words.at(1)), ticket,
                                            std::chrono::steady_clock::now() + kKeeperPatience, is_awaited);
  watch_other_end(connection.get());
  FrameSocket launcher(std::move(connection));  // closed last, when the memory is free
  const int node = std::stoi(words.at(2));
  const int ranks = std::stoi(words.at(3));
  const HeldMemory memory(ranks, words.at(4)), copies(ranks, words.at(4));
  HeldServer server(listen_on("", 0), memory.ranks(), copies.ranks());
  const std::string place = copies.place().empty() ? "" : memory.place() + " " + copies.place(kCopiesWord);
  launcher.send(FrameType::hello, encode(AgentHello{ZERORUN_VERSION, node, this_hostname(), ""}));
  launcher.send(FrameType::keeper, encode(KeeperHello{words.at(4), place, server.port(), ::getpid()}));
  say(kKeeperReady);
  leave_the_agent();
  keep(launcher, server);
}

}  // namespace

bool is_keeper_command(int argc, const char* const* argv) {
  return argc > 1 && std::string_view(argv[1]) == kKeeperCommand;
}

int run_keeper_command(int argc, char** argv) {
  constexpr int kArguments = 7;
  if (argc != kArguments) {
    throw UserError(std::string("zerorun ") + kKeeperCommand +
                    " is internal: an agent of zerorun runs it on each host of a job");
  }
  // A reader that ends, or a limit of file sizes, must not end the keeper.
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  ::prctl(PR_SET_NAME, "zr-keeper");
  try {
    run({argv + 2, argv + argc});
  } catch (const std::exception& error) {
    say(error.what());
    return 1;
  }
  return 0;
}

}  // namespace zerorun::launcher
