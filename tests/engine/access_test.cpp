// Tests reads and writes of a parameter that is not gathered, by every kind of access. Each access must give
// the current value or ZeroRun's error, never a crash or an old value.
#include <catch2/catch.hpp>
#include <sstream>

#include "base/torch_version.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

// A layer whose values the test knows, and another parameter. Each parameter has its own bucket.
struct Known {
  explicit Known(std::shared_ptr<Communicator> communicator)
      : root(build([this](Built& built) {
          model = built.add("layer", Linear(6, 5));
          other = built.add_parameter("other", {16});
          built.add("apart", Linear(torch::nn::LinearOptions(4, 4).bias(false)));  // used by do_before() only
          return nullptr;
        })),
        engine(make_engine(*root, Partition{.bucket_numel = 16}, std::move(communicator))) {
    expect_released(*root);
  }

  Linear model{nullptr};
  at::Tensor other;
  std::shared_ptr<Built> root;
  Engine engine;
  at::Tensor w = values({5, 6}, 501) * 0.3, b = values({5}, 502) * 0.3;  // the layer's expected values
};

void on_ranks(const std::function<void(Known&)>& body) {
  const int world = GENERATE(1, 2);
  const Before before = GENERATE(Before::nothing, Before::write, Before::both);
  CAPTURE(world, static_cast<int>(before));
  CHECK_NOTHROW(run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
    Known known(std::move(communicator));
    do_before(known.engine, known.root->parameters().back(), before);
    body(known);
  }));
}

// Releases the parameters of the last access: max_live is 0, so the use of another parameter evicts them.
void release(Known& known, const std::string& after = "an access") {
  known.other.sum();
  expect_released(known.model->weight, "weight after " + after);
  expect_released(known.model->bias, "bias after " + after);
}

// Releases the parameters and gathers them again from the slices. Throws unless their values are `w` and `b`.
// All ranks must call it.
void expect_values(Known& known, const std::string& what) {
  release(known, what);
  expect_same(known.model->weight, known.w, what + ", weight");
  expect_same(known.model->bias, known.b, what + ", bias");
}

}  // namespace

TEST_CASE("Raw access to a released parameter throws") {
  on_ranks([](Known& known) {
    at::Tensor& weight = known.model->weight;
    expect_throws([&] { weight.data_ptr(); }, kNotGathered, "data_ptr()");
    expect_throws([&] { weight.const_data_ptr(); }, kNotGathered, "const_data_ptr()");
    expect_throws([&] { weight.mutable_data_ptr(); }, kNotGathered, "mutable_data_ptr()");
    expect_throws([&] { weight.data_ptr<float>(); }, kNotGathered, "data_ptr<float>()");
    expect_throws([&] { weight.const_data_ptr<float>(); }, kNotGathered, "const_data_ptr<float>()");
    expect_throws([&] { weight.storage().data(); }, kNotGathered, "storage().data()");
    expect_throws([&] { weight.storage().mutable_data(); }, kNotGathered, "storage().mutable_data()");
    expect_throws([&] { weight.storage().data_ptr(); }, kNotGathered, "storage().data_ptr()");
    expect_throws([&] { weight.accessor<float, 2>(); }, kNotGathered, "accessor()");
    expect_throws([&] { weight.t().data_ptr<float>(); }, kNotGathered, "data_ptr() of a view");
    expect_throws([&] { weight.detach().data_ptr(); }, kNotGathered, "data_ptr() of detach()");
    expect_values(known, "after raw access");
  });
}

TEST_CASE("Saving released parameters throws") {
  on_ranks([](Known& known) {
    std::ostringstream stream;
    expect_throws([&] { torch::save(known.model, stream); }, kNotGathered, "torch::save of the module");
    expect_throws([&] { torch::save(known.model->weight, stream); }, kNotGathered, "torch::save of a tensor");
    expect_throws([&] { torch::pickle_save(known.model->weight.detach()); }, kNotGathered, "pickle_save");
    expect_values(known, "after saving");
  });
}

TEST_CASE("Reading a released parameter gathers it") {
  on_ranks([](Known& known) {
    torch::NoGradGuard no_grad;
    at::Tensor& weight = known.model->weight;
    auto read = [&](const std::string& what, const std::function<at::Tensor(const at::Tensor&)>& how) {
      expect_same(how(weight), how(known.w), what);
      release(known, what);
    };
    read("clone", [](const at::Tensor& t) { return t.clone(); });
    read("to(double)", [](const at::Tensor& t) { return t.to(at::kDouble); });
    read("to(bfloat16)", [](const at::Tensor& t) { return t.to(at::kBFloat16); });
    read("a copy by to()", [](const at::Tensor& t) { return t.to(at::kFloat, false, /*copy=*/true); });
    read("cpu", [](const at::Tensor& t) { return t.cpu(); });
    read("contiguous", [](const at::Tensor& t) { return t.contiguous(); });
    read("contiguous of a transpose", [](const at::Tensor& t) { return t.t().contiguous(); });
    read("reshape of a transpose", [](const at::Tensor& t) { return t.t().reshape({-1}); });
    read("element", [](const at::Tensor& t) { return torch::tensor(t[4][5].item<float>()); });
    read("sum", [](const at::Tensor& t) { return torch::tensor(t.sum().item<float>()); });
    read("a view made earlier", [](const at::Tensor& t) { return t.narrow(1, 2, 3).t().mul(2); });
    read("copy_ from it", [](const at::Tensor& t) { return torch::empty({5, 6}).copy_(t); });
    read("copy_ into another type", [](const at::Tensor& t) {
      return torch::empty({5, 6}, at::kDouble).copy_(t);
    });
    read("an out argument", [](const at::Tensor& t) {
      at::Tensor out = torch::empty({5, 6});
      at::add_out(out, t, t);
      return out;
    });
    read("foreach_norm", [](const at::Tensor& t) { return at::_foreach_norm({t, t.t()})[1]; });
    read("foreach_add", [](const at::Tensor& t) { return at::_foreach_add({t, t}, 1.5)[0]; });
    read("nonzero", [](const at::Tensor& t) { return t.nonzero(); });
    read("sort", [](const at::Tensor& t) { return std::get<1>(t.sort(1)); });
    read("norm", [](const at::Tensor& t) { return t.norm(); });
    read("printing", [](const at::Tensor& t) {
      std::ostringstream text;
      text << t.detach().clone();
      std::ostringstream direct;
      direct << t;
      expect(text.str() == direct.str() && text.str().size() > 100, "printed another text");
      return at::Tensor(torch::zeros({1}));
    });
    release(known);
    expect(torch::equal(weight, known.w) && !torch::equal(weight, known.w + 1), "equal");
    release(known);
    expect(torch::allclose(known.w, weight) && !torch::allclose(known.w + 1, weight), "allclose");
    release(known);
    expect_same(torch::nn::utils::parameters_to_vector(known.model->parameters()),
                torch::cat({known.w.view({-1}), known.b}), "parameters_to_vector");
    expect_values(known, "after reading");
  });
}

TEST_CASE("A copy of a module made by clone() is an ordinary module with all values") {
  on_ranks([](Known& known) {
    auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(known.model->clone());
    release(known);
    expect_same(copy->weight, known.w, "the copy's weight");
    torch::NoGradGuard no_grad;
    copy->weight.mul_(2);
    expect(copy->weight.data_ptr<float>()[3] == known.w.data_ptr<float>()[3] * 2, "raw access to the copy");
    expect_values(known, "after cloning");
  });
}

TEST_CASE("Gradients of released parameters by autograd::grad") {
  on_ranks([](Known& known) {
    const at::Tensor x = values({3, 6}, 9);
    auto expected_w = known.w.clone().requires_grad_(true);
    auto square = [&](const at::Tensor& w, const at::Tensor& b) {
      return torch::linear(x, w, b).square().sum();
    };
    const at::Tensor expected = torch::autograd::grad({square(expected_w, known.b)}, {expected_w})[0];
    const at::Tensor loss = square(known.model->weight, known.model->bias);
    release(known);
    expect_same(torch::autograd::grad({loss}, {known.model->weight})[0], expected, "gradient");
    expect_values(known, "after autograd::grad");
  });
}

TEST_CASE("Writing in place reaches every rank's slice") {
  on_ranks([](Known& known) {
    torch::NoGradGuard no_grad;
    at::Tensor& weight = known.model->weight;
    auto write = [&](const std::string& what, const std::function<void(at::Tensor&)>& how) {
      release(known);
      how(weight);
      how(known.w);
      expect_values(known, what);
    };
    write("mul_", [](at::Tensor& t) { t.mul_(2); });
    write("copy_", [](at::Tensor& t) { t.copy_(values({5, 6}, 33)); });
    write("fill of a row", [](at::Tensor& t) { t[4].fill_(3.5); });
    write("set of an element", [](at::Tensor& t) {
      t.index_put_({torch::tensor(4), torch::tensor(5)}, torch::tensor({7.f}));
    });
    write("set of an element to a number", [](at::Tensor& t) {
      t.index_put_({torch::tensor(2), torch::tensor(1)}, 6.f);
    });
    auto set_to_scalar_tensor = [](at::Tensor& t) {
      t.index_put_({torch::tensor(3), torch::tensor(0)}, torch::tensor(8.f));
    };
    if (ZERORUN_TORCH_LOOKS_AT_MEMORY_OF_ELEMENTS) {
      release(known);
      expect_throws([&] { set_to_scalar_tensor(weight); }, kNotGathered, "set of an element");
    } else {
      write("set of an element to a tensor of no dimensions", set_to_scalar_tensor);
    }
    write("a write through a view of a view", [](at::Tensor& t) { t.t().slice(0, 1, 5).sub_(1); });
    write("a write through detach()", [](at::Tensor& t) { t.detach().add_(0.25); });
    write("a write through data()", [](at::Tensor& t) { t.data().add_(0.25); });
    write("masked_fill_", [](at::Tensor& t) { t.masked_fill_(t > 1, 0.5); });
    write("an out argument", [](at::Tensor& t) { at::mul_out(t, values({5, 6}, 34), values({5, 6}, 35)); });
    write("itself as out argument", [](at::Tensor& t) { at::mul_out(t, t, t); });
    write("foreach_add_", [](at::Tensor& t) { at::_foreach_add_({t}, 1.5); });
    write("foreach_mul_", [](at::Tensor& t) { at::_foreach_mul_({t[0], t[3]}, 0.5); });
    write("clamp_", [](at::Tensor& t) { t.clamp_(-1, 1); });
    write("renorm_", [](at::Tensor& t) { t.renorm_(2, 0, 1); });
    write("zero_", [](at::Tensor& t) { t.zero_(); });
    write("init::constant_", [](at::Tensor& t) { torch::nn::init::constant_(t, 0.75); });
    write("init::eye_", [](at::Tensor& t) { torch::nn::init::eye_(t); });
    write("init::ones_", [](at::Tensor& t) { torch::nn::init::ones_(t); });
    write("fused SGD", [](at::Tensor& t) {
      at::_fused_sgd_({t}, {values({5, 6}, 36)}, {}, /*weight_decay=*/0.1, /*momentum=*/0, /*lr=*/0.5,
                      /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
    });
    write("fused Adam", [](at::Tensor& t) {
      at::_fused_adam_({t}, {values({5, 6}, 37)}, {torch::zeros({5, 6})}, {torch::zeros({5, 6})}, {},
                       {torch::ones({})}, 0.1, 0.9, 0.999, 0.0, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    });
    write("both parameters in one operator", [&](at::Tensor& t) {
      const bool own = t.is_same(weight);
      at::_foreach_mul_({t, own ? known.model->bias : known.b}, 2.0);
    });
  });
}

TEST_CASE("Random initialisation of released parameters") {
  // Uses one rank, since rank-threads would share LibTorch's generator.
  run_ranks(1, [](std::shared_ptr<Communicator> communicator) {
    Known known(std::move(communicator));
    auto initialise = [&](const std::string& what, const std::function<void(at::Tensor)>& how) {
      torch::manual_seed(4);
      how(known.model->weight);
      torch::manual_seed(4);
      how(known.w);
      CHECK_NOTHROW(expect_values(known, what));
    };
    using namespace torch::nn;
    initialise("normal_", [](at::Tensor t) { init::normal_(t, 1, 2); });
    initialise("uniform_", [](at::Tensor t) { init::uniform_(t, 1, 2); });
    initialise("kaiming_uniform_", [](at::Tensor t) { init::kaiming_uniform_(t); });
    initialise("xavier_normal_", [](at::Tensor t) { init::xavier_normal_(t); });
    initialise("orthogonal_", [](at::Tensor t) { init::orthogonal_(t); });
    initialise("sparse_", [](at::Tensor t) { init::sparse_(t, 0.5); });
    torch::manual_seed(4);
    known.model->reset_parameters();
    torch::manual_seed(4);
    Linear fresh(6, 5);
    known.w = fresh->weight;
    known.b = fresh->bias;
    CHECK_NOTHROW(expect_values(known, "reset_parameters"));
  });
}

TEST_CASE("An update starts from the values that the program wrote before it") {
  on_ranks([](Known& known) {
    {
      torch::NoGradGuard no_grad;
      known.model->weight.mul_(2);
    }
    const at::Tensor x = values({3, 6}, 9);
    known.engine.backward(known.model->forward(x).sum());
    known.engine.step();
    known.w = known.w * 2 - torch::ones({3, 5}).t().matmul(x);
    known.b = known.b - 3;
    release(known);
    expect(torch::allclose(known.model->weight, known.w) && torch::allclose(known.model->bias, known.b),
           "after a step");
  });
}

TEST_CASE("Clipping, zeroing and freezing by LibTorch's own functions") {
  on_ranks([](Known& known) {
    const at::Tensor x = values({3, 6}, 9);
    known.engine.backward(known.model->forward(x).sum());
    expect(!known.model->weight.grad().defined(), "the engine has taken the gradient in");
    expect(torch::nn::utils::clip_grad_norm_(known.model->parameters(), 1.0) == 0, "nothing is left to clip");
    known.model->zero_grad();
    known.engine.step();
    known.w = known.w - torch::ones({3, 5}).t().matmul(x);
    known.b = known.b - 3;
    release(known);
    expect(torch::allclose(known.model->weight, known.w), "the step");
    known.model->weight.requires_grad_(false);
    known.engine.backward(known.model->forward(x).sum());
    expect_throws([&] { known.engine.step(); }, "frozen after", "requires_grad_(false)");
    known.model->weight.requires_grad_(true);
    known.w = known.model->weight.detach().clone();
    known.b = known.model->bias.detach().clone();
    expect_values(known, "after freezing");
  });
}

}  // namespace zerorun::testing
