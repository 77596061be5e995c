// Tests the memory of partitioned parameters: peak bytes, allocations in steady state, copies that backward
// saves, and strides.
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

constexpr int64_t kBucket = 1024;  // elements; each parameter below has this size
constexpr int64_t kBucketBytes = kBucket * 4;

// CHECKs that the bytes of gathered buckets keep to the limits. `widest` is the largest number of buckets
// that one operator needs at the same time; `buckets` is the number of all buckets.
void check_peak(const std::string& name, const Build& how, int64_t widest, int64_t buckets) {
  const int64_t max_live = GENERATE(0, 1, 3, 100) * kBucket;
  const int64_t prefetch = GENERATE(0, 1, 2) * kBucket;
  CAPTURE(name, max_live, prefetch);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build(how);
    Engine engine = make_engine(
        *model, Partition{.max_live = max_live, .prefetch = prefetch, .bucket_numel = kBucket}, communicator);
    expect(engine.bytes_by_category().parameters * 2 == buckets * kBucketBytes,
           "other buckets than expected");
    const int64_t bound = std::max(max_live * 4, widest * kBucketBytes) + prefetch * 4;
    int64_t allocations = 0;
    for (int i = 0; i < 6; ++i) {
      engine.backward(loss_of(model->run(i)));
      engine.step();
      const ResidencyReport report = engine.residency();
      expect(report.peak_resident_bytes <= bound, "iteration " + std::to_string(i) + " held " +
                                                      std::to_string(report.peak_resident_bytes) +
                                                      " bytes of " + std::to_string(bound));
      expect(report.peak_resident_bytes >= std::min(widest, buckets) * kBucketBytes,
             "held less than one operator needs");
      if (i == 0) allocations = report.unplanned_allocations;
      expect(report.unplanned_allocations == allocations, "steady state allocates");
      expect(report.departures == 0, "departed from the trace");
      expect(engine.bytes_by_category().gathered == report.resident_bytes, "reported bytes");
    }
    expect(allocations > 0, "the first iteration allocates");
  }));
}

}  // namespace

TEST_CASE("Gathered buckets keep to the limits: a chain of layers") {
  check_peak(
      "chain",
      [](Built& built) {
        std::vector<Linear> layers;
        for (const char* name : {"a", "b", "c", "d", "e", "f"})
          layers.push_back(built.add(name, Linear(torch::nn::LinearOptions(32, 32).bias(false))));
        return [layers](int i) mutable {
          at::Tensor x = values({3, 32}, i);
          for (auto& layer : layers) x = torch::tanh(layer(x));
          return x;
        };
      },
      1, 6);
}

TEST_CASE("Gathered buckets keep to the limits: an operator on all parameters") {
  check_peak(
      "cat",
      [](Built& built) {
        std::vector<at::Tensor> parts;
        for (const char* name : {"a", "b", "c", "d", "e"})
          parts.push_back(built.add_parameter(name, {32, 32}));
        return [parts](int i) {
          const at::Tensor x = torch::tanh(values({3, 32}, i).matmul(parts[3]).matmul(parts[0]));
          return x.matmul(torch::cat(parts, 1));
        };
      },
      5, 5);
}

TEST_CASE("Gathered buckets keep to the limits: a recurrent network") {
  check_peak(
      "LSTM",
      [](Built& built) {
        auto module =
            built.add("module", torch::nn::LSTM(torch::nn::LSTMOptions(16, 16).num_layers(3).bias(false)));
        return [=](int i) mutable { return std::get<0>(module->forward(values({4, 2, 16}, i))); };
      },
      6, 6);  // lstm counts as one use of all its weights
}

TEST_CASE("One warning says how many bytes of parameters backward saves in another dtype") {
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    auto model = build([](Built& built) {
      const at::Tensor a = built.add_parameter("a", {5, 6}), b = built.add_parameter("b", {7, 5});
      return [=](int i) {
        const at::Tensor x = values({3, 6}, i).to(at::kBFloat16);
        return x.matmul(a.t().to(at::kBFloat16)).matmul(b.to(at::kBFloat16).t()).to(at::kFloat);
      };
    });
    Engine engine = make_engine(*model, Partition(), communicator);
    for (int i = 0; i < 3; ++i) {
      engine.backward(loss_of(model->run(i)));
      engine.step();
    }
  }));
  const std::string text = capture.text();
  const std::string warning = "converted " + std::to_string((5 * 6 + 7 * 5) * 4) + " bytes";
  CAPTURE(text);
  CHECK(text.find(warning) != std::string::npos);
  CHECK(text.find(warning) == text.rfind("converted "));
}

TEST_CASE("No warning without copies in another dtype") {
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, Partition(), communicator);
    engine.backward(model->forward(sample(0, 0, 0).to(at::kDouble).to(at::kFloat), true).sum());
    engine.step();
    torch::NoGradGuard no_grad;
    model->first->weight.to(at::kDouble);  // backward does not save this copy
    engine.eval();
  }));
  CHECK(capture.text().find("converted") == std::string::npos);
}

TEST_CASE("Parameters keep dense strides of any kind") {
  const Build how = [](Built& built) {
    auto conv = built.add("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)));
    auto deep = built.add("deep", torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 2, 2)));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    deep->weight.set_data(deep->weight.detach().contiguous(at::MemoryFormat::ChannelsLast3d));
    const at::Tensor turned = built.register_parameter("turned", torch::zeros({5, 2}).t());
    return [=](int i) mutable {
      at::Tensor x = conv(values({2, 3, 6, 6}, i).contiguous(at::MemoryFormat::ChannelsLast));
      x = deep(x.unsqueeze(2).expand({2, 4, 3, 4, 4}));
      return x.mean({2, 3, 4}).matmul(turned);
    };
  };
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build(how), plain = build(how);
    Engine engine = make_engine(*model, Partition(), communicator);
    for (int i = 0; i < 3; ++i) {
      engine.backward(loss_of(model->run(i)));
      engine.step();
      loss_of(plain->run(i)).backward();
      plain_step(*plain);
    }
    const auto found = model->parameters(), expected = plain->parameters();
    for (size_t index = 0; index < found.size(); ++index) {
      expect(found[index].strides() == expected[index].strides(), "the strides have changed");
    }
    expect(!found[0].is_contiguous(), "the test needs other strides");
    expect_same(*model, *plain, "after training");
  }));
}

}  // namespace zerorun::testing
