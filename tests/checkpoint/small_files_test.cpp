// Tests pipes, folders and sparse files in the places of manifests and other small files: errors that name
// the file, no waits and no full memory.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "checkpoint/inventory.h"
#include "checkpoint/own_folder.h"
#include "checkpoint/publication.h"
#include "checkpoint/safetensors_reader.h"
#include "checkpoint/saved_state.h"
#include "tests/checkpoint/publish.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr uintmax_t kHuge = 5'000'000'000;

constexpr uid_t kNobody = 65534;

enum class Wrong { pipe, folder, sparse };

// Root may read every file, so a process of root is another user as long as this lives.
class AsNobody {
 public:
  AsNobody() : was_(::geteuid()) {
    if (was_ == 0) REQUIRE(::seteuid(kNobody) == 0);
  }
  ~AsNobody() {
    if (was_ == 0 && ::seteuid(0) != 0) std::abort();
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  uid_t was_;
};

// Puts something wrong in the place of `file`. Returns what the error says of it.
std::string replace_by(Wrong wrong, const fs::path& file) {
  fs::remove_all(file);
  switch (wrong) {
    case Wrong::pipe:
      REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
      return file.string() + " cannot be opened: it is no regular file";
    case Wrong::folder:
      fs::create_directory(file);
      return file.string() + " cannot be opened: Is a directory";
    case Wrong::sparse:
      break;
  }
  write_text(local_file_system(), file, "");
  fs::resize_file(file, kHuge);
  return file.string() + " cannot be read: it has 5000000000 bytes, expected at most ";
}

}  // namespace

TEST_CASE("A pipe, a folder or a sparse file as manifest or latest is an error that names it") {
  FileSystem& files = local_file_system();
  for (const Wrong wrong : {Wrong::pipe, Wrong::folder, Wrong::sparse}) {
    const TemporaryFolder folder;
    const fs::path directory = folder / "";
    publish(files, directory, "one", "1");
    publish(files, directory, "two", "2");
    const fs::path manifest = directory / "one" / "manifest.json";
    const std::string problem = replace_by(wrong, manifest);
    CHECK_THAT(user_error([&] { SavedState(files, directory / "one"); }), Contains(problem));
    const auto tags = list_tags(files, directory);
    REQUIRE(tags.size() == 2);
    const InventoryTag& damaged = tags[tags[0].tag == "one" ? 0 : 1];
    CHECK(damaged.state == TagState::damaged);
    CHECK_THAT(damaged.problem, Contains(problem));
    // It is no folder of ours any more, so a save does not replace it.
    fs::remove(directory / "one" / "data.safetensors");
    CHECK_THAT(user_error([&] { publish(files, directory, "one", "3"); }), Contains("is not a checkpoint"));
    fs::remove_all(directory / "one");

    const std::string of_latest = replace_by(wrong, directory / "latest");
    CHECK_THAT(user_error([&] { latest_tag(files, directory); }), Contains(of_latest));
    CHECK_THAT(user_error([&] { checkpoint_folder(files, directory, ""); }), Contains(of_latest));
    CHECK(list_tags(files, directory).size() == 1);
  }
}

TEST_CASE("A latest that this user may not read is an error that names it, and stops every removal") {
  FileSystem& files = local_file_system();
  const TemporaryFolder folder;
  const fs::path directory = folder / "";
  for (const int step : {1, 2, 3})
    publish(files, directory, "global_step" + std::to_string(step), std::to_string(step));
  fs::permissions(directory, fs::perms::all);
  fs::permissions(directory / "latest", fs::perms::none);
  const AsNobody nobody;
  const std::string problem = "latest cannot be opened: Permission denied";
  CHECK_THAT(user_error([&] { latest_tag(files, directory); }), Contains(problem));
  CHECK_THAT(user_error([&] { checkpoint_folder(files, directory, ""); }), Contains(problem));
  CHECK_THAT(user_error([&] { plan_prune(files, directory, {.keep = 1}); }), Contains(problem));
  CHECK(list_tags(files, directory).size() == 3);
}

TEST_CASE("A text that is too long for the name of a checkpoint is not read as one") {
  const TemporaryFolder folder;
  folder.write("latest", std::string(5000, 'x'));
  CHECK_THAT(user_error([&] { latest_tag(local_file_system(), folder / ""); }),
             Contains("latest cannot be read: it has 5000 bytes, expected at most 4096"));
}

TEST_CASE("A pipe, a folder or a sparse file as marker of a save marks nothing") {
  FileSystem& files = local_file_system();
  for (const Wrong wrong : {Wrong::pipe, Wrong::folder, Wrong::sparse}) {
    const TemporaryFolder folder;
    fs::create_directory(folder / ".one.partial");
    replace_by(wrong, folder / ".one.partial/" / kMarkerName);
    CHECK(!own_folder(files, folder / ".one.partial"));
  }
}

TEST_CASE("A pipe, a folder or a sparse file as index or model of safetensors is an error that names it") {
  for (const char* name : {"model.safetensors.index.json", "model.safetensors"}) {
    for (const Wrong wrong : {Wrong::pipe, Wrong::folder, Wrong::sparse}) {
      const TemporaryFolder folder;
      const std::string problem = replace_by(wrong, folder / name);
      const bool is_model = std::string(name) == "model.safetensors";
      CHECK_THAT(user_error([&] { SafetensorsReader(folder / "", local_file_system()); }),
                 Contains(is_model && wrong == Wrong::sparse ? "the header is not valid JSON" : problem));
    }
  }
}

}  // namespace zerorun::testing
