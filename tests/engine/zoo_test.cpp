// Tests LibTorch's own modules, with every parameter released as early as possible. Outputs, parameters and
// buffers must have the bits of the same module without the engine.
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"

namespace zerorun::testing {
namespace {

using namespace torch::nn;
namespace F = torch::nn::functional;

// Makes a Build of one module. The module's input has the shape `sizes`.
template <class Holder, class Options>
Build one(Options options, std::vector<int64_t> sizes) {
  return [=](Built& built) {
    Holder module = built.add("module", Holder(options));
    return [=](int iteration) mutable { return module->forward(values(sizes, iteration)); };
  };
}

at::Tensor tokens(int iteration) {
  return torch::tensor({1, 4, 2, 0, 4, 5, 3, 3}).add(iteration).remainder(6).view({2, 4});
}

}  // namespace

TEST_CASE("Linear and bilinear layers") {
  check_beside_plain("Linear", one<Linear>(LinearOptions(5, 7), {3, 5}));
  check_beside_plain("Linear without bias", one<Linear>(LinearOptions(20, 17).bias(false), {2, 3, 20}));
  check_beside_plain("Bilinear", [](Built& built) {
    auto module = built.add("module", Bilinear(4, 5, 3));
    return [=](int i) mutable { return module->forward(values({6, 4}, i), values({6, 5}, i + 50)); };
  });
}

TEST_CASE("Convolutions") {
  check_beside_plain("Conv1d", one<Conv1d>(Conv1dOptions(3, 6, 3).padding(1), {2, 3, 9}));
  check_beside_plain("Conv2d", one<Conv2d>(Conv2dOptions(3, 6, 3).stride(2), {2, 3, 8, 8}));
  check_beside_plain("Conv2d with groups", one<Conv2d>(Conv2dOptions(4, 8, 3).groups(4), {2, 4, 6, 6}));
  check_beside_plain("Conv3d", one<Conv3d>(Conv3dOptions(2, 4, 3), {2, 2, 5, 5, 5}));
  check_beside_plain("ConvTranspose1d",
                     one<ConvTranspose1d>(ConvTranspose1dOptions(4, 3, 3).stride(2), {2, 4, 6}));
  check_beside_plain("ConvTranspose2d",
                     one<ConvTranspose2d>(ConvTranspose2dOptions(4, 3, 3).stride(2), {2, 4, 5, 5}));
}

TEST_CASE("A channels-last convolution") {
  check_beside_plain("Conv2d", [](Built& built) {
    auto module = built.add("module", Conv2d(Conv2dOptions(3, 8, 3)));
    module->weight.set_data(module->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    return [=](int i) mutable {
      expect(module->weight.is_contiguous(at::MemoryFormat::ChannelsLast), "the strides have changed");
      return module->forward(values({2, 3, 6, 6}, i).contiguous(at::MemoryFormat::ChannelsLast));
    };
  });
}

TEST_CASE("Embeddings") {
  check_beside_plain("Embedding", [](Built& built) {
    auto module = built.add("module", Embedding(EmbeddingOptions(6, 10).padding_idx(0)));
    return [=](int i) mutable { return module->forward(tokens(i)); };
  });
  for (bool sum : {true, false}) {
    check_beside_plain(sum ? "EmbeddingBag, sums" : "EmbeddingBag, means", [=](Built& built) {
      EmbeddingBagOptions options(6, 10);
      auto module =
          built.add("module", EmbeddingBag(sum ? options.mode(torch::kSum) : options.mode(torch::kMean)));
      return [=](int i) mutable { return module->forward(tokens(i)); };
    });
  }
  check_beside_plain("Embedding that bounds its rows while it reads them", [](Built& built) {
    auto module = built.add("module", Embedding(EmbeddingOptions(6, 10).max_norm(0.5)));
    return [=](int i) mutable { return module->forward(tokens(i)); };
  });
}

TEST_CASE("Normalisations") {
  check_beside_plain("BatchNorm1d", one<BatchNorm1d>(BatchNormOptions(4), {6, 4}));
  check_beside_plain("BatchNorm2d", one<BatchNorm2d>(BatchNormOptions(4), {3, 4, 5, 5}));
  check_beside_plain("LayerNorm", one<LayerNorm>(LayerNormOptions({4, 5}), {3, 4, 5}));
  check_beside_plain("GroupNorm", one<GroupNorm>(GroupNormOptions(2, 6), {3, 6, 4}));
  check_beside_plain("InstanceNorm2d",
                     one<InstanceNorm2d>(InstanceNormOptions(3).affine(true), {2, 3, 4, 4}));
}

TEST_CASE("Recurrent layers") {
  const bool bidirectional = GENERATE(false, true);
  CAPTURE(bidirectional);
  check_beside_plain("LSTM", [=](Built& built) {
    auto module = built.add("module", LSTM(LSTMOptions(4, 6).num_layers(2).bidirectional(bidirectional)));
    return [=](int i) mutable { return std::get<0>(module->forward(values({5, 3, 4}, i))); };
  });
  check_beside_plain("GRU", [=](Built& built) {
    auto module = built.add("module", GRU(GRUOptions(4, 6).num_layers(2).bidirectional(bidirectional)));
    return [=](int i) mutable { return std::get<0>(module->forward(values({5, 3, 4}, i))); };
  });
  check_beside_plain("RNN, batch first", [=](Built& built) {
    auto module = built.add("module", RNN(RNNOptions(4, 6).batch_first(true).bidirectional(bidirectional)));
    return [=](int i) mutable { return std::get<1>(module->forward(values({3, 5, 4}, i))); };
  });
  check_beside_plain("LSTMCell and GRUCell", [](Built& built) {
    auto first = built.add("first", LSTMCell(4, 6));
    auto second = built.add("second", GRUCell(6, 6));
    return [=](int i) mutable {
      auto [hidden, cell] = first->forward(values({3, 4}, i));
      std::tie(hidden, cell) = first->forward(values({3, 4}, i + 50), std::tuple(hidden, cell));
      return second->forward(hidden, cell);
    };
  });
}

TEST_CASE("Attention") {
  check_beside_plain("MultiheadAttention", [](Built& built) {
    auto module = built.add("module", MultiheadAttention(8, 2));
    return [=](int i) mutable {
      const at::Tensor x = values({5, 3, 8}, i);
      return std::get<0>(module->forward(x, x, x));
    };
  });
  check_beside_plain("MultiheadAttention over other keys and values", [](Built& built) {
    auto module = built.add(
        "module", MultiheadAttention(MultiheadAttentionOptions(8, 2).kdim(6).vdim(6).add_bias_kv(true)));
    return [=](int i) mutable {
      return std::get<0>(
          module->forward(values({5, 3, 8}, i), values({4, 3, 6}, i + 20), values({4, 3, 6}, i + 40)));
    };
  });
  check_beside_plain("TransformerEncoder", [](Built& built) {
    TransformerEncoderLayer layer(TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0));
    auto module = built.add("module", TransformerEncoder(TransformerEncoderOptions(layer, 2)));
    return [=](int i) mutable { return module->forward(values({5, 3, 8}, i)); };
  });
  check_beside_plain("Transformer", [](Built& built) {
    auto options =
        TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(1).dim_feedforward(12).dropout(0);
    auto module = built.add("module", Transformer(options));
    return [=](int i) mutable { return module->forward(values({5, 3, 8}, i), values({4, 3, 8}, i + 50)); };
  });
}

}  // namespace zerorun::testing
