// Tests many kinds of operators, and modes of LibTorch, with parameters released as early as possible. The
// bits must be those of the same module without the engine.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using namespace torch::nn;

// Adds 5 to the diagonal, so that the matrix is far from singular.
at::Tensor regular(const at::Tensor& parameter) {
  return parameter + 5 * torch::eye(parameter.size(0));
}

// An operator that reads the memory of its operands by pointers, differentiable by a function of its own.
at::Tensor scaled_rows(const at::Tensor& rows, const at::Tensor& factors) {
  at::Tensor result = at::empty_like(rows);
  const int64_t columns = rows.size(1);
  for (int64_t i = 0; i < rows.numel(); ++i) {
    result.mutable_data_ptr<float>()[i] =
        rows.const_data_ptr<float>()[i] * factors.const_data_ptr<float>()[i / columns];
  }
  return result;
}

at::Tensor call_scaled_rows(const at::Tensor& rows, const at::Tensor& factors) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("zerorun_test::scaled_rows", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(rows, factors);
}

struct ScaledRows : torch::autograd::Function<ScaledRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& factors) {
    context->save_for_backward({rows, factors});
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_scaled_rows(rows, factors);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1].unsqueeze(1), (gradients[0] * saved[0]).sum(1)};
  }
};

at::Tensor differentiable_scaled_rows(const at::Tensor& rows, const at::Tensor& factors) {
  return ScaledRows::apply(rows, factors);
}

at::Tensor scaled_twice(const at::Tensor& rows, const at::Tensor& factors) {
  return call_scaled_rows(call_scaled_rows(rows, factors), at::sin(factors));
}

// Defines the operators once, while the first engine of a test already lives.
void define_operators() {
  static auto& library = *new torch::Library(torch::Library::DEF, "zerorun_test", {}, __FILE__, __LINE__);
  static std::once_flag once;
  std::call_once(once, [] {
    library.def("scaled_rows(Tensor rows, Tensor factors) -> Tensor");
    library.impl("scaled_rows", torch::dispatch(c10::DispatchKey::CPU, &scaled_rows));
    library.impl("scaled_rows", torch::dispatch(c10::DispatchKey::Autograd, &differentiable_scaled_rows));
    library.def("scaled_twice", &scaled_twice);
  });
}

}  // namespace

TEST_CASE("Operators that the program defines after the engine was made") {
  check_beside_plain("a kernel, and an operator that calls it", [](Built& built) {
    const at::Tensor rows = built.add_parameter("rows", {4, 6});
    const at::Tensor factors = built.add_parameter("factors", {4});
    return [=](int i) {
      define_operators();
      static const auto twice = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("zerorun_test::scaled_twice", "")
                                    .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
      return call_scaled_rows(rows, factors + 1) + twice.call(values({4, 6}, i), factors);
    };
  });
}

TEST_CASE("Operands of other layouts: MKLDNN, nested, quantised, sparse in rows") {
  check_beside_plain("a product with an MKLDNN tensor", [](Built& built) {
    auto linear = built.add("linear", Linear(8, 6));
    return [=](int i) mutable {
      return at::linear(values({3, 8}, i).to_mkldnn(), linear->weight, linear->bias).to_dense();
    };
  });
  check_beside_plain("a product with a nested tensor", [](Built& built) {
    auto linear = built.add("linear", Linear(8, 6));
    return [=](int i) mutable {
      const at::Tensor nested =
          at::_nested_tensor_from_tensor_list({values({2, 8}, i), values({3, 8}, i + 9)});
      return at::nested_to_padded_tensor(at::linear(nested, linear->weight, linear->bias), 0.5);
    };
  });
  check_beside_plain("quantised weights", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {6, 8});
    return [=](int i) {
      const at::Tensor fake = at::fake_quantize_per_tensor_affine(a, 0.05, 8, 0, 255);
      const at::Tensor real = at::quantize_per_tensor(a.detach(), 0.05, 8, at::kQUInt8).dequantize();
      return values({3, 8}, i).matmul((fake + real).t());
    };
  });
  check_beside_plain("a sparse matrix of compressed rows", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {6, 8});
    return [=](int i) {
      const at::Tensor matrix = at::eye(6).mul(values({6, 6}, i)).to_sparse_csr();
      return matrix.matmul(a);
    };
  });
}

TEST_CASE("Linear algebra, sums over indices, transforms") {
  check_beside_plain("linear algebra", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {5, 5}), b = built.add_parameter("b", {5, 5});
    return [=](int i) {
      const at::Tensor x = values({5, 3}, i);
      return at::linalg_solve(regular(a), x) +
             at::linalg_inv(regular(b)).matmul(x) * at::linalg_det(regular(a)) * 1e-4 + at::linalg_norm(b);
    };
  });
  check_beside_plain("einsum", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {3, 4, 5}), b = built.add_parameter("b", {4, 6});
    return [=](int i) {
      return at::einsum("nk,ijk,jl->nil", {values({2, 5}, i), a, b}) + at::kron(b[0], b[1])[0];
    };
  });
  check_beside_plain("Fourier transform", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {3, 8});
    return [=](int i) { return at::fft_irfft(at::fft_rfft(values({3, 8}, i)) * at::fft_rfft(a), 8); };
  });
  check_beside_plain("distances", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {4, 6}), b = built.add_parameter("b", {4, 6});
    return [=](int i) { return at::cdist(values({3, 6}, i), a) + at::cosine_similarity(a, b).sum(); };
  });
  check_beside_plain("a sparse matrix", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {6, 8});
    return [=](int i) {
      const at::Tensor indices = torch::tensor({{0, 1, 2}, {2, 0, 5}});
      return at::_sparse_mm(at::sparse_coo_tensor(indices, values({3}, i), {4, 6}), a);
    };
  });
}

TEST_CASE("Complex views, scalars, gathers and scatters") {
  check_beside_plain("rotation by complex views", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {4, 3, 2});
    return [=](int i) {
      const at::Tensor turn = at::view_as_complex(a), x = at::view_as_complex(values({4, 3, 2}, i));
      return at::view_as_real(turn.conj() * x) + at::imag(turn.conj()).unsqueeze(2) + at::real(turn).sum();
    };
  });
  check_beside_plain("a scalar, and one element", [](Built& built) {
    const at::Tensor scale = built.add_parameter("scale", {}), shift = built.add_parameter("shift", {1});
    return [=](int i) {
      return at::where(values({4}, i) > 0, scale, shift) * scale + (2 - shift) / (scale + 3);
    };
  });
  check_beside_plain("gather, scatter, take, masks", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {4, 6}), b = built.add_parameter("b", {4, 6});
    return [=](int i) {
      const at::Tensor index = torch::tensor({{0, 5}, {1, 1}, {4, 2}, {3, 3}});
      const at::Tensor x = values({4, 2}, i) * a.gather(1, index);
      return at::scatter_add(b, 1, index, x) + a.take(index).sum() + at::masked_fill(a, b > 0, 1) +
             b.cumsum(1).roll(1, 0);
    };
  });
  check_beside_plain("copies into other tensors", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {4, 6});
    return [=](int i) {
      at::Tensor canvas = values({6, 8}, i);
      canvas.slice(0, 1, 5).slice(1, 0, 6).copy_(a);
      canvas[5].narrow(0, 0, 6).add_(a[2]);
      return canvas;
    };
  });
}

TEST_CASE("Attention by queries that are parameters, and other modules") {
  check_beside_plain("scaled_dot_product_attention", [](Built& built) {
    const at::Tensor queries = built.add_parameter("queries", {1, 2, 3, 8});
    const at::Tensor keys = built.add_parameter("keys", {1, 2, 5, 8});
    return [=](int i) { return at::scaled_dot_product_attention(queries, keys, values({1, 2, 5, 8}, i)); };
  });
  check_beside_plain("PReLU", [](Built& built) {
    auto linear = built.add("linear", Linear(5, 8));
    auto module = built.add("module", PReLU(PReLUOptions().num_parameters(8)));
    return [=](int i) mutable { return module(linear(values({3, 5}, i))); };
  });
  check_beside_plain("AdaptiveLogSoftmaxWithLoss", [](Built& built) {
    AdaptiveLogSoftmaxWithLossOptions options(8, 12, {4, 8});
    options.div_value(2);
    auto module = built.add("module", AdaptiveLogSoftmaxWithLoss(options));
    return [=](int i) mutable { return module(values({4, 8}, i), torch::tensor({0, 5, 9, 3})).output; };
  });
  check_beside_plain("LSTM over sequences of several lengths", [](Built& built) {
    auto module = built.add("module", LSTM(4, 6));
    return [=](int i) mutable {
      const auto packed = utils::rnn::pack_padded_sequence(values({5, 3, 4}, i), torch::tensor({5, 3, 2}));
      return std::get<0>(module->forward_with_packed_input(packed)).data();
    };
  });
  check_beside_plain("normalised weights", [](Built& built) {
    const at::Tensor direction = built.add_parameter("direction", {5, 6}),
                     length = built.add_parameter("length", {5, 1});
    return [=](int i) { return torch::linear(values({3, 6}, i), at::_weight_norm(direction, length)); };
  });
}

TEST_CASE("Under autocast") {
  check_beside_plain("autocast", [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), shared = built.add("shared", Linear(8, 8));
    return [=](int i) mutable {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_cache_enabled(false);  // rank-threads share the cache
      const at::Tensor output = shared(torch::tanh(shared(torch::tanh(first(values({4, 5}, i))))));
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return output.to(at::kFloat);
    };
  });
}

TEST_CASE("Under autocast: products, convolutions, a loss in fp32") {
  check_beside_plain("autocast", [](Built& built) {
    auto convolution = built.add("convolution", Conv1d(Conv1dOptions(3, 4, 2)));
    const at::Tensor weight = built.add_parameter("weight", {4, 5}), bias = built.add_parameter("bias", {5});
    return [=](int i) mutable {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_cache_enabled(false);  // rank-threads share the cache
      const at::Tensor x = convolution(values({2, 3, 5}, i)).transpose(1, 2).reshape({8, 4});
      const at::Tensor output = at::mm(x, weight) + at::addmm(bias, x, weight);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return output.to(at::kFloat);
    };
  });
}

TEST_CASE("In inference mode: reading and writing") {
  const int world = GENERATE(1, 2);
  CAPTURE(world);
  const Build how = [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), second = built.add("second", Linear(8, 8));
    return [=](int i) mutable { return second(torch::tanh(first(values({4, 5}, i)))); };
  };
  CHECK_NOTHROW(run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build(how), plain = build(how);
    Engine engine = make_engine(*model, Partition(), communicator);
    engine.eval();
    for (int i = 0; i < 4; ++i) {
      c10::InferenceMode inference;
      expect_same(model->run(i), plain->run(i), "an output");
      for (auto* each : {model.get(), plain.get()}) {
        for (at::Tensor& parameter : each->parameters()) parameter.mul_(1.5);
      }
    }
    engine.train();
    engine.backward(loss_of(model->run(0)));
    engine.step();
    loss_of(plain->run(0)).backward();
    plain_step(*plain);
    expect_same(*model, *plain, "after training");
  }));
}

}  // namespace zerorun::testing
