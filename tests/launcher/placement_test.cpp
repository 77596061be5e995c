// Tests the count of GPUs, the search for programs, and the environment of a rank.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/gpu_presence.h"
#include "launcher/hosts/dry_run.h"
#include "launcher/program_path.h"
#include "launcher/rank_environment.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using zerorun::UserError;
using namespace zerorun::launcher;

TEST_CASE("GPUs are counted by their device files") {
  char folder[] = "/tmp/zerorun_devices_XXXXXX";
  REQUIRE(mkdtemp(folder));
  for (const char* name :
       {"nvidia", "nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia1x", "anvidia3"}) {
    std::ofstream(std::string(folder) + "/" + name) << "";
  }
  CHECK(zerorun::count_gpu_files(folder) == 2);
  std::filesystem::remove_all(folder);
  CHECK(zerorun::count_gpu_files(folder) == 0);
}

TEST_CASE(
    "a machine has GPUs if the driver has device files, or its library is installed and the PCI bus has "
    "GPUs") {
  const zerorun::testing::TemporaryFolder folder;
  const std::string root = (folder / "").parent_path();
  CHECK_FALSE(zerorun::has_gpus(true, root));
  const std::string device = "sys/bus/pci/devices/0000:18:00.0/";
  std::filesystem::create_directories(folder / device);
  folder.write(device + "vendor", "0x10de\n");
  folder.write(device + "class", "0x068000\n");  // an NVSwitch
  CHECK_FALSE(zerorun::has_gpus(true, root));
  folder.write(device + "class", "0x030200\n");
  CHECK(zerorun::has_gpus(true, root));
  CHECK_FALSE(zerorun::has_gpus(false, root));  // a container that was given none
  std::filesystem::create_directories(folder / "dev");
  folder.write("dev/nvidia0", "");
  CHECK(zerorun::has_gpus(false, root));
}

TEST_CASE("values of CUDA_VISIBLE_DEVICES that hide all GPUs") {
  for (const char* value : {"", "-1", "-1,0", "NoDevFiles", "none", "void"})
    CHECK(zerorun::hides_all_gpus(value));
  CHECK_FALSE(zerorun::hides_all_gpus(nullptr));
  for (const char* value : {"0", "0,-1", "7,3", "GPU-1234", "MIG-1234", "-12"})
    CHECK_FALSE(zerorun::hides_all_gpus(value));
}

TEST_CASE("programs that cannot be run are refused with a remedy") {
  CHECK(find_program("/bin/sh") == "/bin/sh");
  CHECK_THAT(find_program("sh"), Catch::Matchers::EndsWith("/sh"));
  CHECK_THROWS_WITH(find_program("/nowhere/prog"), Contains("/nowhere/prog") && Contains("build it"));
  CHECK_THROWS_WITH(find_program("/etc/passwd"), Contains("chmod +x /etc/passwd"));
  CHECK_THROWS_WITH(find_program("/tmp"), Contains("directory"));
  CHECK_THROWS_WITH(find_program("no_such_program_here"), Contains("PATH"));
  CHECK_THROWS_AS(find_program(""), UserError);
}

namespace {

std::string value_of(const std::vector<std::string>& environment, const std::string& name) {
  std::string found = "(none)";
  for (const std::string& entry : environment) {
    if (!entry.starts_with(name + "=")) continue;
    REQUIRE(found == "(none)");  // the variable occurs only once
    found = entry.substr(name.size() + 1);
  }
  return found;
}

}  // namespace

TEST_CASE("the environment of a rank") {
  JobEnvironment job;
  job.placement = Placement({{"localhost", {0, 1, 2, 3}}});
  job.master_addr = "127.0.0.1";
  job.master_port = 1234;
  job.listening_fd = 5;
  job.token = "token";
  job.timeout_seconds = 2.5;
  job.threads_per_rank = 3;
  const std::vector<std::string> inherited = {"HOME=/h",
                                              "RANK=9",
                                              "WORLD_SIZE=",
                                              "TORCHELASTIC_USE_AGENT_STORE=True",
                                              "ZERORUN_JOB=of a job around us",
                                              "ZERORUN_LISTEN_FD=9",
                                              "ZERORUN_TERMINAL=1",
                                              "ZERORUN_TIMELINE_RING=/of/a/job/around/us",
                                              "ZERORUN_TIMELINE=users.tar",
                                              "CUDA_VISIBLE_DEVICES=7",
                                              "ZERORUN_DEVICE=cuda",
                                              "NCCL_MULTI_RANK_GPU_ENABLE=0",
                                              "OMP_NUM_THREADS="};
  auto rank2 = rank_environment(inherited, job, 2);
  CHECK(value_of(rank2, "HOME") == "/h");
  CHECK(value_of(rank2, "RANK") == "2");
  CHECK(value_of(rank2, "LOCAL_RANK") == "2");
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"})
    CHECK(value_of(rank2, name) == "4");
  CHECK(value_of(rank2, "MASTER_ADDR") == "127.0.0.1");
  CHECK(value_of(rank2, "MASTER_PORT") == "1234");
  CHECK(value_of(rank2, "ZERORUN_JOB") == "token");
  CHECK(value_of(rank2, "ZERORUN_LISTEN_FD") == "(none)");
  CHECK(value_of(rank2, "ZERORUN_TIMEOUT") == "2.5");
  CHECK(value_of(rank2, "OMP_NUM_THREADS") == "3");
  CHECK(value_of(rank2, "CUDA_VISIBLE_DEVICES") == "7");
  CHECK(value_of(rank2, "ZERORUN_DEVICE") == "cuda");
  CHECK(value_of(rank2, "ZERORUN_COMM") == "(none)");
  CHECK(value_of(rank2, "NCCL_LAUNCH_ORDER_IMPLICIT") == "1");
  CHECK(value_of(rank2, "NCCL_MULTI_RANK_GPU_ENABLE") == "0");
  CHECK(value_of(rank2, "ZERORUN_TERMINAL") == "(none)");
  CHECK(value_of(rank2, "ZERORUN_TIMELINE_RING") == "(none)");
  CHECK(value_of(rank2, "ZERORUN_TIMELINE") == "users.tar");
  CHECK(value_of(rank2, "TORCHELASTIC_USE_AGENT_STORE") == "(none)");

  job.terminal = true;
  job.visible_devices = "0,2";
  job.device = "cpu";
  job.comm = "gloo";
  job.timeout_seconds = 600;
  job.timeline = "/t.tar";
  job.timeline_steps = "1:2";
  job.timeline_rings = {"/ring0", "", "/ring2"};
  auto rank0 =
      rank_environment({"OMP_NUM_THREADS=8", "CUDA_VISIBLE_DEVICES=7", "ZERORUN_DEVICE=cuda"}, job, 0);
  CHECK(value_of(rank0, "ZERORUN_LISTEN_FD") == "5");
  CHECK(value_of(rank0, "ZERORUN_DEVICE") == "cpu");
  CHECK(value_of(rank0, "ZERORUN_COMM") == "gloo");
  CHECK(value_of(rank0, "ZERORUN_TERMINAL") == "1");
  CHECK(value_of(rank0, "ZERORUN_TIMELINE") == "/t.tar");
  CHECK(value_of(rank0, "ZERORUN_TIMELINE_STEPS") == "1:2");
  CHECK(value_of(rank0, "ZERORUN_TIMELINE_RING") == "/ring0");
  CHECK(value_of(rank_environment({}, job, 1), "ZERORUN_TIMELINE_RING") == "(none)");
  CHECK(value_of(rank0, "CUDA_VISIBLE_DEVICES") == "0,2");
  CHECK(value_of(rank0, "OMP_NUM_THREADS") == "8");
  CHECK(value_of(rank0, "ZERORUN_TIMEOUT") == "600");
  CHECK(value_of(rank0, "NCCL_LAUNCH_ORDER_IMPLICIT") == "(none)");
}

TEST_CASE("on several hosts, local variables count the ranks of one host") {
  JobEnvironment job;
  job.placement = Placement({{"a", {0, 1}}, {"b", {0, 2, 3}}});
  const auto rank3 = rank_environment({}, job, 3);
  const std::pair<const char*, const char*> expected[] = {
      {"RANK", "3"},       {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "5"}, {"LOCAL_WORLD_SIZE", "3"},
      {"LOCAL_SIZE", "3"}, {"CROSS_RANK", "1"}, {"CROSS_SIZE", "2"}};
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(value_of(rank3, name) == value);
  }
}

TEST_CASE("a dry run prints commands that are quoted for a shell") {
  JobEnvironment job;
  job.placement = Placement({{"a", {0}}, {"b", {0}}});
  job.master_addr = "10.0.0.1";
  job.master_port = 29500;
  job.token = "a secret";
  job.threads_per_rank = 2;
  NodeOrder order;
  order.arguments = {"prog", "two words", "it's", ""};
  order.folder = "/a folder";
  order.variables = {{"NCCL_DEBUG", "a b"}};
  const std::string text = describe_job(job, 0, {}, order);
  CHECK_THAT(text, Catch::Matchers::StartsWith("a: env -u ") && Contains("\nb: cd '/a folder' && env -u ") &&
                       Contains(" NCCL_DEBUG='a b' ") && Contains(" prog 'two words' 'it'\\''s' ''\n") &&
                       Contains(" MASTER_PORT=29500 ") && !Contains("secret"));
  CHECK(text.find("OMP_NUM_THREADS=2") < text.find("\nb: "));
  CHECK(text.find("OMP_NUM_THREADS", text.find("\nb: ")) == std::string::npos);
  CHECK(shell_word("a\nb") == "'a\nb'");
  CHECK(shell_word("$(id)") == "'$(id)'");
}

TEST_CASE("a dry run shows the coordinates of the mesh that the program's config names") {
  const zerorun::testing::TemporaryFolder folder;
  const std::string plain = (folder / "plain.json").string(), meshed = (folder / "ds_config.json").string();
  std::ofstream(plain) << R"({"train_batch_size": 8})";
  std::ofstream(meshed) << R"({"train_batch_size": 8, "zerorun": {"mesh": {"tensor": 2}}})";
  CHECK(!find_mesh({"prog", "--other", plain, "none.json"}, 4));
  CHECK(!find_mesh({"prog", "--deepspeed_config", meshed}, 3));  // the program refuses it
  for (const std::vector<std::string>& words : {std::vector<std::string>{"prog", "--deepspeed", meshed},
                                                {"prog", plain, "--deepspeed_config=" + meshed}}) {
    const auto mesh = find_mesh(words, 4);
    REQUIRE(mesh == zerorun::MeshSizes{.data = 2, .tensor = 2, .pipeline = 1});
    JobEnvironment job;
    job.placement = Placement({{"a", {0, 1, 2, 3}}});
    NodeOrder order;
    order.arguments = {"prog"};
    const std::string text = describe_job(job, 0, {}, order, mesh);
    CHECK_THAT(text, Contains(" RANK=0 ") && Contains(" prog  # data 0, tensor 0\n") &&
                         Contains(" prog  # data 0, tensor 1\n") &&
                         Catch::Matchers::EndsWith(" prog  # data 1, tensor 1\n"));
  }
}

TEST_CASE("zerorun.as_deepspeed runs scripts, modules and other programs for which zerorun is deepspeed") {
  using Words = std::vector<std::string>;
  const zerorun::testing::TemporaryFolder folder;
  const std::string script = (folder / "train.py").string();
  std::ofstream(script) << "";
  const Words head = {"python3", "-u", "-m", "zerorun.as_deepspeed"};
  const auto after_head = [&](const Words& more) {
    Words all = head;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  CHECK(arguments_as_deepspeed({script, "-x"}, false, false, false) == after_head({script, "-x"}));
  CHECK(arguments_as_deepspeed({script, "-x"}, false, false, true) ==
        after_head({"--local_rank", script, "-x"}));
  CHECK(arguments_as_deepspeed({"pkg.train"}, true, false, false) == after_head({"-m", "pkg.train"}));
  CHECK(arguments_as_deepspeed({"x.py"}, false, true, false) == after_head({"--no_python", "x.py"}));
  CHECK(arguments_as_deepspeed({"accelerate", "launch"}, false, false, false) ==
        after_head({"accelerate", "launch"}));
  std::filesystem::remove(script);
  CHECK_THROWS_WITH(arguments_as_deepspeed({script}, false, false, false),
                    Contains("correct the path of the script"));
}

TEST_CASE("Python runs modules and files that end in .py") {
  const auto arguments = [](std::vector<std::string> command, bool module, bool no_python) {
    return program_arguments(std::move(command), module, no_python);
  };
  using Words = std::vector<std::string>;
  CHECK(arguments({"prog", "-a"}, false, false) == Words{"prog", "-a"});
  CHECK(arguments({"package.tool", "-a"}, true, false) == Words{"python3", "-u", "-m", "package.tool", "-a"});
  char file[] = "/tmp/zerorun_XXXXXX.py";
  const int descriptor = mkstemps(file, 3);
  REQUIRE(descriptor >= 0);
  close(descriptor);
  CHECK(arguments({file, "-a"}, false, false) == Words{"python3", "-u", file, "-a"});
  CHECK(arguments({file}, false, true) == Words{file});
  std::filesystem::remove(file);
  CHECK_THROWS_WITH(arguments({file}, false, false), Contains(file) && Contains("correct the path"));
}

TEST_CASE("the Python of a launcher is that of its virtual environment") {
  const zerorun::testing::TemporaryFolder folder;
  const std::filesystem::path launcher = folder / "bin/zerorun";
  std::filesystem::create_directory(folder / "bin");
  CHECK(python_of(launcher) == "python3");
  std::filesystem::copy_file("/bin/true", folder / "bin/python3");
  CHECK(python_of(launcher) == "python3");
  std::ofstream(folder / "pyvenv.cfg") << "home = /usr/bin\n";
  CHECK(python_of(launcher) == (folder / "bin/python3").string());
  std::filesystem::remove(folder / "bin/python3");
  CHECK(python_of(launcher) == "python3");
}
