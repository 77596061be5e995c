// Tests transfers through io_uring and through threads, and that threads are used if io_uring is forbidden.
#include "offload/transfers.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <map>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using std::chrono::seconds;

// Makes io_uring_setup() fail with EPERM in this process, as in many containers. Returns false on failure.
bool forbid_io_uring() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = 4, .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Forbids this process to lock memory. Returns false on failure.
bool forbid_locked_memory() {
  const rlimit none{};
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[2] = {};
  if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0 || ::syscall(SYS_capget, &header, sets) != 0) return false;
  sets[0].effective &= ~(1U << CAP_IPC_LOCK);
  sets[0].permitted &= ~(1U << CAP_IPC_LOCK);
  std::byte page[4096];
  return ::syscall(SYS_capset, &header, sets) == 0 && ::syscall(SYS_mlock, page, sizeof page) != 0;
}

// Runs `works` in a child process and returns the status of waitpid(): 0 if `works` returns true.
template <typename Works>
int exit_code_of(const Works& works) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(works() ? 0 : 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

void check_transfers(Transfers& transfers, OpenFile& file) {
  constexpr size_t kBytes = 8192;
  constexpr int kCount = 8;
  std::vector<std::vector<std::byte>> written(kCount), read(kCount);
  auto start_all = [&](std::vector<std::vector<std::byte>>& all, bool writes) {
    for (int i = 0; i < kCount; ++i)
      transfers.start(
          {.file = file.number(), .writes = writes, .bytes = all[i], .offset = i * int64_t{kBytes}}, i);
    std::map<int, int64_t> done;
    while (done.size() < kCount) {
      const auto one = transfers.next(seconds(10));
      REQUIRE(one);
      CHECK(done.emplace(one->tag, one->result).second);
      CHECK(one->result == int64_t{kBytes});
    }
  };
  for (int i = 0; i < kCount; ++i) {
    written[i].assign(kBytes, static_cast<std::byte>(i + 1));
    read[i].resize(kBytes);
  }
  start_all(written, true);
  start_all(read, false);
  CHECK(read == written);
  CHECK_FALSE(transfers.next(std::chrono::milliseconds(0)));
  CHECK_FALSE(transfers.next(std::chrono::milliseconds(10)));
  transfers.start({.file = -1, .writes = false, .bytes = read[0], .offset = 0}, 3);
  const auto failed = transfers.next(seconds(10));
  REQUIRE(failed);
  CHECK(failed->tag == 3);
  CHECK(failed->result == -EBADF);
}

}  // namespace

TEST_CASE("Written bytes are read back, and errors are reported") {
  const TemporaryFolder folder;
  OpenFile file = OpenFile::create(local_file_system(), folder / "x");
  const auto threads = open_transfer_threads(local_file_system(), 3);
  check_transfers(*threads, file);
  if (const auto ring = open_io_uring(local_file_system(), 8)) {
    CHECK(std::string(ring->name()) == "io_uring");
    check_transfers(*ring, file);
  } else {
    WARN("this kernel offers no io_uring");
  }
}

TEST_CASE("If io_uring is forbidden, threads make the transfers") {
  CHECK(exit_code_of([] {
          return forbid_io_uring() &&
                 std::string(open_transfers(local_file_system(), 8, 2)->name()) == "threads";
        }) == 0);
}

TEST_CASE("Transfers work in a process that may not lock memory") {
  const TemporaryFolder folder;
  CHECK(exit_code_of([&] {
          if (!forbid_locked_memory()) return false;
          OpenFile file = OpenFile::create(local_file_system(), folder / "x");
          const auto transfers = open_transfers(local_file_system(), 8, 2);
          std::vector<std::byte> written(8192, std::byte{7}), read(8192);
          auto moves = [&](std::vector<std::byte>& bytes, bool writes) {
            transfers->start({.file = file.number(), .writes = writes, .bytes = bytes, .offset = 0}, 1);
            const auto done = transfers->next(seconds(10));
            return done && done->result == 8192;
          };
          return moves(written, true) && moves(read, false) && read == written;
        }) == 0);
}

}  // namespace zerorun::testing
