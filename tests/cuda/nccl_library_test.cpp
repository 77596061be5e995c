// Tests which NCCL versions are accepted, and which ranks can use NCCL together.
#include "cuda/nccl_library.h"

#include <nccl.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "comm/thread_communicator.h"
#include "cuda/nccl_environment.h"
#include "cuda/nccl_registration.h"
#include "cuda/peers.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

Peer peer(const std::string& host, const std::string& gpu, int version = 22809) {
  return {.host = host, .boot = "boot", .gpu = gpu, .nccl_version = version};
}

}  // namespace

TEST_CASE("nccl: both encodings of versions are decoded") {
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(nccl_version_text(23010) == "2.30.10");
  CHECK(nccl_version_text(2708) == "2.7.8");
  CHECK(nccl_version_text(NCCL_VERSION_CODE) ==
        std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) + "." + std::to_string(NCCL_PATCH));
}

TEST_CASE("nccl: its environment variables are set before main(), and the user's own values are kept") {
  REQUIRE(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"));
  REQUIRE(std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"));
  struct {
    const char* set;
    bool orders;
  } const cases[] = {{"1", true}, {"2", true}, {"0", false}, {"", false}, {"no", false}};
  const std::string before = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  for (const auto& [set, orders] : cases) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", set, 1);
    complete_nccl_environment();
    CHECK(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT") == std::string(set));
    CHECK(nccl_orders_launches() == orders);
  }
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  CHECK_FALSE(nccl_orders_launches());
  complete_nccl_environment();
  CHECK(nccl_orders_launches());
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", before.c_str(), 1);
}

TEST_CASE("nccl: the features of a version") {
  struct {
    int version;
    bool windows, shared_gpus;
  } const cases[] = {{22703, false, false}, {22809, false, false}, {22903, false, false},
                     {22907, false, false}, {23003, false, true},  {23101, false, true},
                     {23102, true, true}};
  for (const auto& wanted : cases) {
    INFO(wanted.version);
    const NcclFeatures features = nccl_features(wanted.version);
    CHECK(features.version == wanted.version);
    CHECK(features.windows == wanted.windows);
    CHECK(features.shared_gpus == wanted.shared_gpus);
  }
}

TEST_CASE("nccl: memory is registered only if the environment asks for it") {
  const NcclFeatures early = nccl_features(23101);
  const NcclFeatures late = nccl_features(23102);
  for (const NcclFeatures& features : {early, late}) {
    CHECK(parse_nccl_registration(nullptr, features) == NcclRegistration::none);
    CHECK(parse_nccl_registration("", features) == NcclRegistration::none);
    CHECK(parse_nccl_registration("none", features) == NcclRegistration::none);
    CHECK(parse_nccl_registration("buffers", features) == NcclRegistration::buffers);
    for (const char* wrong : {"window", "1", "Buffers", "none "}) {
      CHECK_THROWS_AS(parse_nccl_registration(wrong, features), UserError);
      CHECK_THROWS_WITH(parse_nccl_registration(wrong, features),
                        StartsWith(std::string("ZERORUN_NCCL_REGISTER=") + wrong + ":") &&
                            Contains("none (the default), buffers, or windows (from NCCL 2.31.2)"));
    }
  }
  CHECK(parse_nccl_registration("windows", late) == NcclRegistration::windows);
  CHECK_THROWS_AS(parse_nccl_registration("windows", early), UserError);
  CHECK_THROWS_WITH(
      parse_nccl_registration("windows", early),
      Contains("needs NCCL 2.31.2 or later, and 2.31.1 is loaded") && Contains("none or buffers"));
}

TEST_CASE("nccl: NVLink SHARP is switched off for ranks that will share a GPU") {
  struct {
    const char* ranks;
    const char* visible;
    int installed;
    bool share;
  } const cases[] = {
      {"2", nullptr, 1, true},      {"8", nullptr, 8, false}, {"9", nullptr, 8, true},
      {"2", "3", 8, true},          {"2", "3,5", 8, false},   {"2", "GPU-5ab,GPU-6cd", 1, false},
      {nullptr, nullptr, 1, false}, {"4", nullptr, 0, false}, {"2", "", 1, true}};
  for (const auto& given : cases) {
    INFO((given.ranks ? given.ranks : "-") << " ranks, " << given.installed << " GPUs");
    CHECK(ranks_share_gpus(given.ranks, given.visible, given.installed) == given.share);
  }
}

TEST_CASE("nccl: an unsuitable version is refused with both versions and the remedy") {
  CHECK_NOTHROW(check_nccl_version(22809, 22809));
  CHECK_NOTHROW(check_nccl_version(22809, 22807));
  CHECK_NOTHROW(check_nccl_version(22809, 23007));
  for (int old : {22606, 22803, 2708}) {
    CHECK_THROWS_AS(check_nccl_version(22809, old), UserError);
    CHECK_THROWS_WITH(check_nccl_version(22809, old),
                      Contains("NCCL " + nccl_version_text(old) + " is loaded") &&
                          Contains("2.28.7 or later") && Contains("2.28.9") && Contains("LD_LIBRARY_PATH"));
  }
  CHECK_THROWS_AS(check_nccl_version(22809, 30001), UserError);
  CHECK_THROWS_WITH(check_nccl_version(22809, 30001), Contains("3.0.1") && Contains("2.28.9") &&
                                                          Contains("major versions") &&
                                                          Contains("LD_LIBRARY_PATH"));
}

TEST_CASE("nccl: the loaded library tells its version, with or without a GPU") {
  const NcclFeatures features = loaded_nccl();
  CHECK(features.version / 10000 == NCCL_MAJOR);
  CHECK(features.version >= 22807);
}

TEST_CASE("peers: ranks learn of each other's machines and GPUs") {
  const std::vector<Peer> wanted = {
      {"first", "f5d1", "0000:3b:00.0", 22809, true, true, NcclRegistration::buffers},
      {"second", "a0a1", "0000:5e:00.0", 23003, false, true, NcclRegistration::windows},
      {std::string(200, 'x'), "", "", 0, true, false}};
  std::vector<std::vector<Peer>> found(3);
  auto communicators = make_thread_communicators(3, std::chrono::seconds(20));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { found[rank] = exchange_peers(*communicators[rank], wanted[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& peers : found) {
    REQUIRE(peers.size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(wanted[rank].host.starts_with(peers[rank].host));
      CHECK(peers[rank].host.size() >= std::min<size_t>(wanted[rank].host.size(), 60));
      CHECK(peers[rank].boot == wanted[rank].boot);
      CHECK(peers[rank].gpu == wanted[rank].gpu);
      CHECK(peers[rank].nccl_version == wanted[rank].nccl_version);
      CHECK(peers[rank].several_communicators == wanted[rank].several_communicators);
      CHECK(peers[rank].nccl_mem_alloc == wanted[rank].nccl_mem_alloc);
      CHECK(peers[rank].registration == wanted[rank].registration);
    }
  }
}

TEST_CASE("peers: ranks that share a GPU are named, unless NCCL can do that") {
  const std::vector<Peer> peers = {peer("a", "0000:3b:00.0"), peer("a", "0000:5e:00.0"),
                                   peer("b", "0000:3b:00.0"), peer("a", "0000:5e:00.0")};
  CHECK_THROWS_AS(check_peers(peers, nccl_features(22809)), UserError);
  CHECK_THROWS_WITH(check_peers(peers, nccl_features(22809)),
                    Contains("ranks 1, 3 share the GPU 0000:5e:00.0 of a") &&
                        Contains("NCCL 2.28.9 does not support") && Contains("--num_gpus") &&
                        Contains("--device cpu") && Contains("2.30"));
  CHECK(check_peers(peers, nccl_features(23003)));
}

TEST_CASE("peers: one PCI address on two machines is two GPUs, also if the machines have one name") {
  std::vector<Peer> peers = {peer("a", "0000:3b:00.0"), peer("b", "0000:3b:00.0"), peer("a", "0000:3b:00.0")};
  peers[2].boot = "another";
  CHECK_FALSE(check_peers(peers, nccl_features(22809)));
  CHECK_FALSE(check_peers(peers, nccl_features(23003)));
}

TEST_CASE("peers: ranks with NCCL in different versions are named") {
  const std::vector<Peer> peers = {peer("a", "0000:3b:00.0"), peer("b", "0000:3b:00.0", 23003)};
  CHECK_THROWS_AS(check_peers(peers, nccl_features(22809)), UserError);
  CHECK_THROWS_WITH(check_peers(peers, nccl_features(22809)),
                    Contains("rank 0 on a has 2.28.9, rank 1 on b has 2.30.3"));
}

TEST_CASE("peers: ranks that would register different memory are named") {
  std::vector<Peer> peers = {peer("a", "0000:3b:00.0"), peer("b", "0000:3b:00.0")};
  peers[1].registration = NcclRegistration::buffers;
  CHECK_THROWS_AS(check_peers(peers, nccl_features(22809)), UserError);
  CHECK_THROWS_WITH(check_peers(peers, nccl_features(22809)),
                    Contains("ZERORUN_NCCL_REGISTER: rank 0 on a has none, rank 1 on b has buffers"));
}

TEST_CASE("peers: this machine has a host name and a boot id") {
  const Peer mine = this_machine();
  CHECK_FALSE(mine.host.empty());
  CHECK(mine.boot.size() == 36);
}

}  // namespace zerorun
