// Tests checkpoints of hosts without a common folder: rank-threads whose file systems show the same path in
// different folders, one for each host.
#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/unique_fd.h"
#include "checkpoint/publication.h"
#include "engine/saving/checkpoint_folder.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/publish.h"
#include "tests/engine/collected_state.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const fs::path kDirectory = "/runs/1";  // the path that the ranks use
constexpr char kNodeLocal[] = R"(, "checkpoint": {"use_node_local_storage": true})";

// The file system of one host: its `root` holds what the host's ranks see under "/".
class HostFileSystem : public FaultyFileSystem {
 public:
  explicit HostFileSystem(fs::path root, Fault fault = {})
      : FaultyFileSystem(local_file_system(), std::move(fault)), root_(std::move(root)) {
    fs::create_directories(root_);
  }
  int create(const fs::path& file, Caching caching) override {
    return FaultyFileSystem::create(real(file), caching);
  }
  int open(const fs::path& file) override { return FaultyFileSystem::open(real(file)); }
  int create_nameless(const fs::path& folder) override {
    return FaultyFileSystem::create_nameless(real(folder));
  }
  int link_open(int file, const fs::path& name) override {
    return FaultyFileSystem::link_open(file, real(name));
  }
  int make_folder(const fs::path& folder) override { return FaultyFileSystem::make_folder(real(folder)); }
  int sync_folder(const fs::path& folder) override { return FaultyFileSystem::sync_folder(real(folder)); }
  int rename(const fs::path& from, const fs::path& to) override {
    return FaultyFileSystem::rename(real(from), real(to));
  }
  int link(const fs::path& file, const fs::path& name) override {
    return FaultyFileSystem::link(real(file), real(name));
  }
  int exchange(const fs::path& one, const fs::path& other) override {
    return FaultyFileSystem::exchange(real(one), real(other));
  }
  int remove_file(const fs::path& file) override { return FaultyFileSystem::remove_file(real(file)); }
  int remove_folder(const fs::path& folder) override { return FaultyFileSystem::remove_folder(real(folder)); }
  std::optional<std::vector<std::string>> list(const fs::path& folder) override {
    return FaultyFileSystem::list(real(folder));
  }
  int open_folder(const fs::path& folder) override { return FaultyFileSystem::open_folder(real(folder)); }
  std::optional<fs::path> link_target(const fs::path& path) override {
    return FaultyFileSystem::link_target(real(path));
  }
  std::optional<FileIdentity> identity(const fs::path& file) override {
    return FaultyFileSystem::identity(real(file));
  }
  std::shared_ptr<FolderLock> lock_folder(const fs::path& folder) override {
    return FaultyFileSystem::lock_folder(real(folder));
  }
  fs::path real(const fs::path& path) const { return root_ / path.relative_path(); }

 private:
  fs::path root_;
};

// Two hosts with two ranks each.
struct Hosts {
  explicit Hosts(const TemporaryFolder& folder, Fault of_second = {})
      : first(folder / "host0"), second(folder / "host1", std::move(of_second)) {}
  HostFileSystem& of(const Communicator& communicator) { return communicator.rank() < 2 ? first : second; }

  HostFileSystem first, second;
};

// Runs four ranks, the first two on one host and the others on the next, and calls `body` with each rank's
// training.
template <typename Body>
void on_hosts(Hosts& hosts, int stage, const std::string& more, const Body& body,
              std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  run_ranks(
      4,
      [&](std::shared_ptr<Communicator> communicator) {
        communicator->set_first_on_host(communicator->rank() % 2 == 0);
        StateTraining training(all_state_cases().front(), stage, "bf16", communicator, more);
        body(training, hosts.of(*communicator));
      },
      timeout);
}

}  // namespace

TEST_CASE(
    "Hosts without a common folder save their own files, which load on them, and anywhere once merged") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  Hosts hosts(folder);
  CollectedState expected, loaded, merged;
  on_hosts(hosts, stage, kNodeLocal, [&](StateTraining& training, FileSystem& files) {
    for (const int step : {0, 1}) {
      training.step(step);
      training.state->checkpoints.write_to(files);
      save_checkpoint(*training.state, kDirectory, "", {.keep_last = 1, .asynchronous = false});
    }
    expected.add(training);
  });
  const std::set<std::string> of_first = names_in(hosts.first.real(kDirectory / "global_step2"));
  const std::set<std::string> of_second = names_in(hosts.second.real(kDirectory / "global_step2"));
  for (const HostFileSystem* host : {&hosts.first, &hosts.second})
    CHECK(names_in(host->real(kDirectory)) == std::set<std::string>{"global_step2", "latest"});
  for (const std::string& name : of_second) {
    CAPTURE(name);
    CHECK((of_first.count(name) == 0) == (name != kManifestName));
    CHECK(name != kMarkerName);
  }
  CHECK(of_second.size() > 1);

  on_hosts(hosts, stage, kNodeLocal, [&](StateTraining& training, FileSystem& files) {
    load_checkpoint(*training.state, kDirectory, "", {}, files);
    loaded.add(training);
  });
  check_same(expected.whole(), loaded.whole());

  // Two ranks of one host read files of all ranks.
  const auto load_on_first = [&] {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training(all_state_cases().front(), stage, "bf16", communicator);
      load_checkpoint(*training.state, kDirectory, "", {}, hosts.first);
      merged.add(training);
    });
  };
  CHECK_THAT(user_error(load_on_first),
             Contains("rank-00002.safetensors: missing") &&
                 Contains("copy the checkpoint's files of all hosts into one folder"));
  fs::copy(hosts.second.real(kDirectory), hosts.first.real(kDirectory),
           fs::copy_options::recursive | fs::copy_options::skip_existing);
  load_on_first();
  check_same(expected.whole(), merged.whole());
}

TEST_CASE("While the engines live, every host's folder stays locked") {
  const TemporaryFolder folder;
  Hosts hosts(folder);
  std::atomic<int> locked = 0;
  on_hosts(hosts, 2, kNodeLocal, [&](StateTraining& training, HostFileSystem& files) {
    training.state->checkpoints.write_to(files);
    save_checkpoint(*training.state, kDirectory, "", {.asynchronous = false});
    training.state->checkpoints.finish();
    training.state->mesh.data().barrier("saved")->wait();
    const UniqueFd lock(::open(files.real(kDirectory / kLockName).c_str(), O_RDONLY));
    locked += ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK ? 1 : 0;
    training.state->mesh.data().barrier("tried")->wait();
  });
  CHECK(locked == 4);
}

TEST_CASE("A reserved folder is tried and locked on every host before the first save") {
  const TemporaryFolder folder;
  Hosts hosts(folder);
  const auto count_locked = [&](bool node_local) {
    std::atomic<int> locked = 0;
    run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      communicator->set_first_on_host(communicator->rank() % 2 == 0);
      HostFileSystem& files = hosts.of(*communicator);
      const auto held = reserve_checkpoint_folder(kDirectory, *communicator, node_local, files);
      const UniqueFd lock(::open(files.real(kDirectory / kLockName).c_str(), O_RDONLY));
      locked += ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK ? 1 : 0;
      communicator->barrier("tried")->wait();
    });
    return locked.load();
  };
  CHECK(count_locked(false) == 2);
  CHECK_FALSE(fs::exists(hosts.second.real(kDirectory)));
  CHECK(count_locked(true) == 4);

  fs::remove_all(hosts.second.real("/runs"));
  std::ofstream(hosts.second.real("/runs")) << "a file";
  CHECK_THAT(user_error([&] { count_locked(true); }), Contains("rank 2: /runs/1 cannot be made"));
}

TEST_CASE("If hosts have a common folder, only rank 0 locks it, also with use_node_local_storage") {
  const TemporaryFolder folder;
  HostFileSystem files(folder / "common");
  std::atomic<int> held = 0;
  run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    communicator->set_first_on_host(communicator->rank() % 2 == 0);
    const auto lock = reserve_checkpoint_folder(kDirectory, *communicator, /*node_local=*/true, files);
    held += lock ? 1 : 0;
    communicator->barrier("reserved")->wait();
  });
  CHECK(held == 1);
}

TEST_CASE("On each host keep_last keeps what was saved last, whatever its folder had before") {
  const TemporaryFolder folder;
  Hosts hosts(folder);
  const fs::path before = hosts.second.real(kDirectory / "global_step900");
  fs::create_directories(before);
  std::ofstream(before / "data.safetensors") << "1";
  std::ofstream(before / kManifestName) << manifest_of("data.safetensors", 41);
  on_hosts(hosts, 2, kNodeLocal, [&](StateTraining& training, FileSystem& files) {
    for (const int step : {0, 1}) {
      training.step(step);
      training.state->checkpoints.write_to(files);
      save_checkpoint(*training.state, kDirectory, "", {.keep_last = 2, .asynchronous = false});
    }
  });
  for (const HostFileSystem* host : {&hosts.first, &hosts.second})
    CHECK(names_in(host->real(kDirectory)) ==
          std::set<std::string>{"global_step1", "global_step2", "latest"});
}

TEST_CASE("With a common folder, use_node_local_storage changes nothing") {
  const TemporaryFolder folder;
  HostFileSystem files(folder / "common");
  CollectedState expected, loaded;
  run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    communicator->set_first_on_host(communicator->rank() % 2 == 0);
    StateTraining training(all_state_cases().front(), 2, "bf16", communicator, kNodeLocal);
    training.step(0);
    training.state->checkpoints.write_to(files);
    save_checkpoint(*training.state, kDirectory, "", {.asynchronous = false});
    expected.add(training);
    StateTraining resumed(all_state_cases().front(), 2, "bf16", communicator);
    load_checkpoint(*resumed.state, kDirectory, "", {}, files);
    loaded.add(resumed);
  });
  check_same(expected.whole(), loaded.whole());
  CHECK(names_in(files.real(kDirectory)) == std::set<std::string>{"global_step1", "latest"});
  CHECK(names_in(files.real(kDirectory / "global_step1")).count(kMarkerName) == 0);
}

TEST_CASE("Without use_node_local_storage, a host that does not see rank 0's folder is an error") {
  const TemporaryFolder folder;
  Hosts hosts(folder);
  const std::string error = user_error([&] {
    on_hosts(
        hosts, 2, "",
        [&](StateTraining& training, FileSystem& files) {
          training.state->checkpoints.write_to(files);
          save_checkpoint(*training.state, kDirectory, "", {.asynchronous = false});
        },
        std::chrono::seconds(3));
  });
  CHECK_THAT(error, Contains("rank 2: this host does not see /runs/1/.global_step0.") &&
                        Contains(".partial") && Contains("\"use_node_local_storage\": true"));
  CHECK(names_in(hosts.first.real(kDirectory)).empty());
}

TEST_CASE("If one host cannot save its part, the save fails on all hosts, soon and without leftover files") {
  const TemporaryFolder folder;
  // All of the calls with which the second host's first rank makes its folder, and some of the later ones.
  const int64_t call = GENERATE(range<int64_t>(0, 12), range<int64_t>(12, 60, 4));
  CAPTURE(call);
  // The failing call takes its time, so the host's other rank writes meanwhile if it can.
  Hosts hosts(folder, {.call = call, .error = EIO, .meanwhile = [] {
                         std::this_thread::sleep_for(std::chrono::milliseconds(100));
                       }});
  std::atomic<int> failures = 0;
  on_hosts(hosts, 2, kNodeLocal, [&](StateTraining& training, FileSystem& files) {
    training.step(0);
    training.state->checkpoints.write_to(files);
    const std::string error =
        user_error([&] { save_checkpoint(*training.state, kDirectory, "", {.asynchronous = false}); });
    if (!error.empty() && error.find("Input/output error") != std::string::npos) ++failures;
  });
  CHECK(failures == (hosts.second.calls() > call ? 4 : 0));
  CHECK((call > 0 || failures == 4));
  // Rank 0's folder decides which tag is loaded, so a failed save must leave nothing in it.
  CHECK(names_in(hosts.first.real(kDirectory)).empty() == (failures > 0));
  if (fs::exists(hosts.second.real(kDirectory))) {
    for (const std::string& name : names_in(hosts.second.real(kDirectory))) CHECK(!tag_of_partial(name));
  }
}

TEST_CASE("Hosts that see different checkpoints under one name get an error") {
  const TemporaryFolder folder;
  Hosts hosts(folder);
  on_hosts(hosts, 2, kNodeLocal, [&](StateTraining& training, FileSystem& files) {
    for (const char* tag : {"one", "other"}) {
      training.step(0);
      training.state->checkpoints.write_to(files);
      save_checkpoint(*training.state, kDirectory, tag, {.asynchronous = false});
    }
  });
  fs::remove_all(hosts.second.real(kDirectory / "other"));
  fs::rename(hosts.second.real(kDirectory / "one"), hosts.second.real(kDirectory / "other"));
  const std::string error = user_error([&] {
    on_hosts(hosts, 2, kNodeLocal, [&](StateTraining& training, FileSystem& files) {
      load_checkpoint(*training.state, kDirectory, "", {}, files);
    });
  });
  CHECK_THAT(error, Contains("/runs/1/other: rank 2 sees another checkpoint there than rank 0"));
}

}  // namespace zerorun::testing
