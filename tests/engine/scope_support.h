// A model of the tests of GatheredParameters, and ranks that train it.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {

// A model that is a chain of layers, each in its own bucket, and its engine.
struct Chain {
  Chain(std::shared_ptr<Communicator> communicator, const Partition& partition)
      : model(make()), engine(make_engine(*model, partition, std::move(communicator))) {}

  static std::shared_ptr<Built> make() {
    return build([](Built& built) {
      std::vector<torch::nn::Linear> layers;
      for (const char* name : {"a", "b", "c", "d"}) {
        layers.push_back(built.add(name, torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false))));
      }
      built.add("apart",
                torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));  // forward does not use it
      return [layers](int i) mutable {
        at::Tensor x = values({3, 4}, i);
        for (auto& layer : layers) x = torch::tanh(layer(x));
        return x;
      };
    });
  }
  at::Tensor weight(int layer) const { return model->parameters()[layer]; }
  at::Tensor initial(int layer) const { return make()->parameters()[layer].detach(); }
  bool partitioned() const { return engine.config().zero.stage == 3; }
  // Releases the layer: max_live is 0, so the use of another layer evicts it.
  void release(int layer) const {
    weight((layer + 1) % 4).sum();
    if (partitioned()) expect_released(weight(layer), "layer " + std::to_string(layer));
  }
  void expect_value(int layer, const at::Tensor& expected, const std::string& what) const {
    release(layer);
    expect_same(weight(layer), expected, what);
  }

  std::shared_ptr<Built> model;
  Engine engine;
};

inline void on_ranks(int world, int stage, const std::function<void(Chain&, int rank)>& body) {
  const Before before = GENERATE(Before::nothing, Before::write, Before::exception, Before::both);
  CAPTURE(world, stage, static_cast<int>(before));
  CHECK_NOTHROW(run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Chain chain(std::move(communicator), {.stage = stage, .bucket_numel = 16});
    do_before(chain.engine, chain.model->parameters()[4], before);
    body(chain, rank);
  }));
}

inline void write_raw(const at::Tensor& parameter, const at::Tensor& source) {
  std::memcpy(parameter.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
}

inline void train_beside(Chain& chain, Built& plain, int from, int to) {
  for (int i = from; i < to; ++i) {
    loss_of(plain.run(i)).backward();
    plain_step(plain);
    chain.engine.backward(loss_of(chain.model->run(i)));
    chain.engine.step();
  }
}

}  // namespace zerorun::testing
