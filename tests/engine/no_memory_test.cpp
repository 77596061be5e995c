// Tests a backward that needs memory for a window's gradients when there is no memory left.
#include <catch2/catch.hpp>
#include <new>

#include "comm/notices.h"
#include "device/cpu_device.h"
#include "tests/engine/net.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

struct ScarceDevice : CpuDevice {
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    if (exhausted) throw std::bad_alloc();
    return CpuDevice::allocate(numel, dtype);
  }
  bool exhausted = false;
};

// The communicator of a world of one rank.
struct Alone : Communicator {
  explicit Alone(Device& device) : Communicator(0, 1, std::chrono::seconds(60), device) {}
  std::unique_ptr<Notices> open_notices() override {
    return make_notices(std::make_shared<NoticesInMemory>(), 0);
  }

 private:
  struct Done : Work {
    void wait() override {}
  };
  std::unique_ptr<Work> start(CollectiveCall call) override {
    if (call.output.const_data_ptr() != call.input.const_data_ptr()) call.output.copy_(call.input);
    return std::make_unique<Done>();
  }
};

}  // namespace

TEST_CASE("A backward that fails for lack of memory can be repeated") {
  const int stage = GENERATE(0, 1);
  CAPTURE(stage);
  ScarceDevice device;
  Net model;
  Engine engine = make_engine(*model,
                              R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                                  "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                                  "zero_optimization": {"stage": )" +
                                  std::to_string(stage) + "}}",
                              std::make_shared<Alone>(device));
  auto loss = [&] { return model->forward(sample(0, 0, 0).to(at::kBFloat16), true).sum(); };
  {
    auto scope = engine.no_sync();
    device.exhausted = true;  // in the scope gradients are summed in float32, in memory that is allocated now
    CHECK_THROWS_AS(engine.backward(loss()), std::bad_alloc);
    device.exhausted = false;
  }
  SECTION("the engine goes on") {
    const at::Tensor before = model->first->weight.detach().clone();
    engine.backward(loss());
    engine.step();
    CHECK_FALSE(torch::equal(before, model->first->weight));
  }
}

}  // namespace zerorun::testing
