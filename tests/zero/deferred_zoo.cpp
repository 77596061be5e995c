#include "tests/zero/deferred_zoo.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <string>

#include "samples/gpt2/model.h"

namespace zerorun {
namespace {

namespace nn = torch::nn;
using ModulePtr = std::shared_ptr<nn::Module>;
using Maker = std::function<ModulePtr()>;

// A module whose parameters and buffers are made by the function `fill`.
struct Bag : nn::Module {
  using Fill = std::function<void(Bag&)>;
  explicit Bag(const Fill& fill) { fill(*this); }

  at::Tensor parameter(const std::string& name, at::Tensor tensor) {
    return register_parameter(name, std::move(tensor));
  }
  at::Tensor buffer(const std::string& name, at::Tensor tensor) {
    return register_buffer(name, std::move(tensor));
  }
};

Maker bag(Bag::Fill fill) {
  return [fill] { return std::make_shared<Bag>(fill); };
}

template <typename Holder, typename... Arguments>
Maker module(Arguments... arguments) {
  return [=]() -> ModulePtr { return Holder(arguments...).ptr(); };
}

Maker initialised(std::vector<int64_t> sizes, std::function<void(at::Tensor)> init) {
  return bag([=](Bag& self) { init(self.parameter("w", torch::empty(sizes))); });
}

}  // namespace

std::vector<DeferredCase> deferred_library_modules() {
  return {
      {"Linear", module<nn::Linear>(37, 19)},
      {"Conv1d", module<nn::Conv1d>(nn::Conv1dOptions(3, 6, 5))},
      {"Conv2d", module<nn::Conv2d>(nn::Conv2dOptions(4, 6, 3).groups(2))},
      {"Conv3d", module<nn::Conv3d>(nn::Conv3dOptions(2, 3, 3).bias(false))},
      {"ConvTranspose2d", module<nn::ConvTranspose2d>(nn::ConvTranspose2dOptions(4, 6, 3))},
      {"Embedding", module<nn::Embedding>(nn::EmbeddingOptions(23, 8).padding_idx(3))},
      {"EmbeddingBag", module<nn::EmbeddingBag>(nn::EmbeddingBagOptions(23, 8))},
      {"LSTM", module<nn::LSTM>(nn::LSTMOptions(7, 5).num_layers(2).bidirectional(true))},
      {"GRU", module<nn::GRU>(nn::GRUOptions(7, 5))},
      {"MultiheadAttention", module<nn::MultiheadAttention>(nn::MultiheadAttentionOptions(12, 3))},
      {"TransformerEncoderLayer",
       module<nn::TransformerEncoderLayer>(nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(20))},
      {"Transformer", module<nn::Transformer>(nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(9))},
      {"BatchNorm2d", module<nn::BatchNorm2d>(6)},
      {"LayerNorm", module<nn::LayerNorm>(nn::LayerNormOptions({5, 4}))},
      {"GroupNorm", module<nn::GroupNorm>(nn::GroupNormOptions(2, 6))},
      {"PReLU", module<nn::PReLU>(nn::PReLUOptions().num_parameters(3))},
      {"Bilinear", module<nn::Bilinear>(4, 5, 6)},
      {"Sequential",
       [] {
         return nn::Sequential(nn::Linear(5, 6), nn::ReLU(), nn::BatchNorm1d(6), nn::Linear(6, 2)).ptr();
       }},
      {"Gpt2",
       [] {
         return samples::Gpt2(
                    samples::Gpt2Options{.layers = 2, .hidden = 16, .heads = 2, .vocab = 11, .positions = 8})
             .ptr();
       }},
  };
}

std::vector<DeferredCase> deferred_initialisers() {
  return {
      {"kaiming_uniform_", initialised({9, 17}, [](auto w) { nn::init::kaiming_uniform_(w); })},
      {"xavier_normal_", initialised({9, 17}, [](auto w) { nn::init::xavier_normal_(w, 2.0); })},
      {"orthogonal_ tall", initialised({17, 9}, [](auto w) { nn::init::orthogonal_(w, 1.5); })},
      {"orthogonal_ wide", initialised({5, 3, 4}, [](auto w) { nn::init::orthogonal_(w); })},
      {"dirac_", initialised({4, 3, 5}, [](auto w) { nn::init::dirac_(w); })},
      {"eye_", initialised({6, 4}, [](auto w) { nn::init::eye_(w); })},
      {"constant_", initialised({6, 4}, [](auto w) { nn::init::constant_(w, 0.3); })},
      {"sparse_", initialised({8, 5}, [](auto w) { nn::init::sparse_(w, 0.5); })},
      {"normal_ of a few", initialised({3}, [](auto w) { nn::init::normal_(w); })},
      {"truncated normal", initialised({8, 9},
                                       [](at::Tensor w) {
                                         torch::NoGradGuard no_grad;
                                         w.uniform_(-0.9, 0.9).erfinv_().mul_(0.02).add_(0.1).clamp_(-0.02,
                                                                                                     0.12);
                                       })},
      {"other distributions", bag([](Bag& self) {
         self.parameter("exponential", torch::empty({21}).exponential_());
         self.parameter("bernoulli", torch::empty({21}).bernoulli_(0.3));
         self.parameter("cauchy", torch::empty({21}).cauchy_());
         self.buffer("random", torch::empty({21}, at::kLong).random_(0, 100));
         self.buffer("geometric", torch::empty({21}).geometric_(0.4));
         self.parameter("log_normal", torch::empty({21}).log_normal_());
         self.parameter("transposed", torch::empty({7, 5}).t().normal_());
       })},
  };
}

std::vector<DeferredCase> deferred_computed() {
  return {
      {"scaled randn", bag([](Bag& self) {
         self.parameter("w", torch::randn({33, 5}) * 0.02);
       })},
      {"joined", bag([](Bag& self) {
         self.parameter("w", torch::cat({torch::linspace(-1, 1, 7), torch::arange(5).to(at::kFloat),
                                         torch::full({3}, 0.5), torch::rand({4})}));
         self.parameter("stacked", torch::stack({torch::rand({4}), torch::ones({4})}, 1));
       })},
      {"tied", bag([](Bag& self) {
         const at::Tensor w = self.parameter("w", torch::randn({4, 6}));
         self.parameter("same", w);
         self.parameter("bias", torch::rand({6}));
       })},
      {"two views of one storage", bag([](Bag& self) {
         at::Tensor both = torch::randn({6, 8});
         self.parameter("left", both.narrow(1, 0, 5));
         self.parameter("transposed", both.t());
         self.parameter("right", both.narrow(1, 3, 5));
         both.mul_(3);  // the views, which are registered already, must see it
       })},
      {"copied from another", bag([](Bag& self) {
         const at::Tensor a = self.parameter("a", torch::randn({5, 5}));
         const at::Tensor b = self.parameter("b", torch::rand({5, 5}));
         torch::NoGradGuard no_grad;
         b.copy_(a);
         a.add_(1);  // b keeps a's old values
         self.parameter("c", a.detach().clone());
         a.zero_();
         b[2].fill_(7);
       })},
      {"buffers", bag([](Bag& self) {
         self.buffer("mask", torch::tril(torch::ones({6, 6})).view({1, 1, 6, 6}));
         self.buffer("bool_mask", torch::ones({4, 4}, at::kBool).triu(1));
         self.buffer("expanded", torch::arange(3).expand({4, 3}));
         self.buffer("list", torch::tensor({1.5, 2.5, 3.5}));
         self.buffer("scalar", torch::tensor(3));
         const at::Tensor frequency = torch::exp(torch::arange(0, 8, 2) * (-std::log(10000.0) / 8));
         const at::Tensor angle = torch::arange(5).unsqueeze(1) * frequency;
         at::Tensor table = torch::zeros({5, 8});
         using torch::indexing::Slice;
         table.index_put_({Slice(), Slice(0, at::indexing::None, 2)}, torch::sin(angle));
         table.index_put_({Slice(), Slice(1, at::indexing::None, 2)}, torch::cos(angle));
         self.buffer("sinusoids", table);
         self.buffer("none", torch::empty({0, 3}));
       })},
      {"16 bits",
       [] {
         ModulePtr linear = nn::Linear(7, 5).ptr();
         linear->to(at::kBFloat16);
         return linear;
       }},
      {"another default dtype", bag([](Bag& self) {
         torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
         self.parameter("w", torch::randn({5, 5}));
         self.parameter("ratio", torch::arange(5) / 3);
         torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
       })},
      {"channels last", bag([](Bag& self) {
         self.parameter("w", torch::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast));
       })},
      {"foreach and like", bag([](Bag& self) {
         const at::Tensor a = self.parameter("a", torch::randn({5}));
         const at::Tensor b = self.parameter("b", torch::randn_like(a));
         self.buffer("c", torch::full_like(b, 2.0));
         self.buffer("d", a.new_ones({2, 2}));
         torch::NoGradGuard no_grad;
         std::vector<at::Tensor> all{a, b};
         at::_foreach_mul_(all, 0.5);
       })},
      {"seeded anew, and in part", bag([](Bag& self) {
         at::Tensor a = self.parameter("a", torch::rand({6, 5}));
         torch::manual_seed(11);
         torch::NoGradGuard no_grad;
         a.narrow(1, 1, 3).normal_();
         a[2].uniform_();
         self.parameter("b", torch::rand({4}));
       })},
      {"own generator", bag([](Bag& self) {
         at::Generator generator = at::detail::createCPUGenerator(99);
         self.parameter("a", at::randn({6, 3}, generator));
         self.parameter("b", at::empty({40}).normal_(0, 1, generator));
         self.parameter("c", at::rand({2}));
       })},
      {"in-place views", bag([](Bag& self) {
         at::Tensor w = torch::randn({3, 5});
         w.t_();
         w.unsqueeze_(0);
         w.mul_(2);
         self.parameter("w", w);
       })},
  };
}

}  // namespace zerorun
