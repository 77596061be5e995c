#include "plan/meta_operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_log_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_log_softmax_meta_dispatch.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_softmax_backward_data_meta_dispatch.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/addmv_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/elu_backward_meta_dispatch.h>
#include <ATen/ops/elu_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu_backward_meta_dispatch.h>
#include <ATen/ops/gelu_meta_dispatch.h>
#include <ATen/ops/glu_meta_dispatch.h>
#include <ATen/ops/hardsigmoid_backward_meta_dispatch.h>
#include <ATen/ops/hardsigmoid_meta_dispatch.h>
#include <ATen/ops/leaky_relu_backward_meta_dispatch.h>
#include <ATen/ops/leaky_relu_meta_dispatch.h>
#include <ATen/ops/mish_meta_dispatch.h>
#include <ATen/ops/mse_loss_meta_dispatch.h>
#include <ATen/ops/nll_loss_backward_meta_dispatch.h>
#include <ATen/ops/nll_loss_forward_meta_dispatch.h>
#include <ATen/ops/sigmoid_backward_meta_dispatch.h>
#include <ATen/ops/silu_backward_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/smooth_l1_loss_meta_dispatch.h>
#include <ATen/ops/softplus_backward_meta_dispatch.h>
#include <ATen/ops/softplus_meta_dispatch.h>
#include <ATen/ops/tanh_backward_meta_dispatch.h>
#include <ATen/ops/threshold_backward_meta_dispatch.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace zerorun {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// Kernels whose CPU counterparts would take time or memory: sizes, strides and dtypes are theirs.

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the dispatcher compares the types of kernels
Tensor embedding_dense_backward(const Tensor& gradient, const Tensor& /*indices*/, c10::SymInt count,
                                c10::SymInt /*padding*/, bool /*scales*/) {
  return at::empty({count.expect_int(), gradient.size(-1)}, gradient.options());
}

Triple native_layer_norm(const Tensor& input, c10::SymIntArrayRef shape, const std::optional<Tensor>& weight,
                         const std::optional<Tensor>& /*bias*/, double /*eps*/) {
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(shape.size()), sizes.end(), 1);
  const bool is_mixed = weight && weight->defined() && weight->scalar_type() == at::kFloat;
  const at::TensorOptions options = is_mixed ? input.options().dtype(at::kFloat) : input.options();
  const Tensor output = at::empty_like(input, {}, at::MemoryFormat::Contiguous);
  return {output, at::empty(sizes, options), at::empty(sizes, options)};
}

Triple native_layer_norm_backward(const Tensor& /*gradient*/, const Tensor& input,
                                  c10::SymIntArrayRef /*shape*/, const Tensor& /*mean*/,
                                  const Tensor& /*deviation*/, const std::optional<Tensor>& weight,
                                  const std::optional<Tensor>& bias, std::array<bool, 3> wanted) {
  const auto like = [&](size_t index, const std::optional<Tensor>& of) {
    const bool is_there = wanted[index] && of && of->defined();
    return is_there ? at::empty_like(*of, {}, at::MemoryFormat::Contiguous) : Tensor();
  };
  return {like(0, input), like(1, weight), like(2, bias)};
}

// (B, H, T, D), which lies in memory as (B, T, H, D).
Tensor of_heads(const Tensor& like, at::IntArrayRef sizes) {
  return at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, like.options()).transpose(1, 2);
}

Pair flash_attention(const Tensor& query, const Tensor& /*key*/, const Tensor& value, double /*dropout*/,
                     bool /*is_causal*/, const std::optional<Tensor>& /*mask*/,
                     std::optional<double> /*scale*/) {
  const int64_t batch = query.size(0), heads = query.size(1), length = query.size(2);
  const Tensor sums =
      at::empty({batch, length, heads}, query.options().dtype(at::toOpMathType(query.scalar_type())));
  return {of_heads(query, {batch, heads, length, value.size(3)}), sums.transpose(1, 2)};
}

Triple flash_attention_backward(const Tensor& /*gradient*/, const Tensor& query, const Tensor& key,
                                const Tensor& value, const Tensor& /*output*/, const Tensor& /*sums*/,
                                double /*dropout*/, bool /*is_causal*/, const std::optional<Tensor>& /*mask*/,
                                std::optional<double> /*scale*/) {
  return {of_heads(query, query.sizes()), of_heads(key, key.sizes()), of_heads(value, value.sizes())};
}

// LibTorch's own function takes the way that keeps all scores, since it asks only devices with memory.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& given_mask, double dropout, bool is_causal,
                 std::optional<double> scale, bool has_key_groups) {
  const auto way = static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(query, key, value, given_mask, dropout, is_causal, scale, has_key_groups));
  std::optional<Tensor> mask = given_mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    const Tensor zero = at::zeros({}, query.options());
    mask = at::where(*mask, zero, zero);
  }
  if (way == at::SDPBackend::flash_attention)
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, is_causal, mask, scale));
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, is_causal, {},
                                                            scale, has_key_groups));
}

// The tensor's sizes, strides and dtype on the CPU, with zeros. Pages take memory only if they are written.
Tensor cpu_zeros(const Tensor& meta) {
  const size_t bytes = std::max<size_t>(
      at::detail::computeStorageNbytes(meta.sizes(), meta.strides(), meta.element_size()), 1);
  void* zeros = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,  // NOLINTNEXTLINE(hicpp-signed-bitwise)
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) throw Error("no address space for " + std::to_string(bytes) + " bytes of zeros");
  return at::from_blob(
      zeros, meta.sizes(), meta.strides(), [bytes](void* begin) { ::munmap(begin, bytes); },
      at::TensorOptions(meta.scalar_type()).device(at::kCPU));
}

// Runs an operator's kernel for CPUs on zeros.
class OnZeros {
 public:
  void take_arguments(torch::jit::Stack& stack, const std::vector<c10::Argument>& arguments) {
    auto value = stack.end() - static_cast<std::ptrdiff_t>(arguments.size());
    for (const c10::Argument& argument : arguments) {
      const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
      each_tensor(*value++, [&](const Tensor& tensor) { return on_cpu(tensor, is_written); });
    }
  }
  void give_results(torch::jit::Stack& stack, size_t count) {
    for (auto value = stack.end() - static_cast<std::ptrdiff_t>(count); value != stack.end(); ++value)
      each_tensor(*value, [this](const Tensor& tensor) { return on_meta(tensor); });
  }

 private:
  template <typename Change>
  static void each_tensor(c10::IValue& value, const Change& change) {
    if (value.isTensor()) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> changed;
      for (const Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
      value = std::move(changed);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> changed;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        changed.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
      value = std::move(changed);
    }
  }
  // Only LibTorch's own memory can be resized, as results may be.
  Tensor on_cpu(const Tensor& tensor, bool is_written) {
    if (!tensor.defined() || !tensor.is_meta() || tensor.layout() != at::kStrided) return tensor;
    Tensor zeros =
        is_written
            ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU)).zero_()
            : cpu_zeros(tensor);
    return made_.emplace_back(tensor, std::move(zeros)).second;
  }
  // An argument that the operator returns stays the program's tensor.
  Tensor on_meta(const Tensor& tensor) const {
    if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
    const auto given =
        std::ranges::find_if(made_, [&](const auto& each) { return each.second.is_same(tensor); });
    if (given != made_.end() && given->first.sizes() == tensor.sizes()) return given->first;
    const Tensor made =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
    if (given == made_.end()) return made;
    c10::TensorImpl& resized = *given->first.unsafeGetTensorImpl();
    resized.set_storage_keep_dtype(made.storage());
    resized.set_sizes_and_strides(made.sizes(), made.strides());
    return given->first;
  }

  std::vector<std::pair<Tensor, Tensor>> made_;  // a tensor without memory, and its zeros
};

void run_on_zeros(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  OnZeros zeros;
  zeros.take_arguments(*stack, op.schema().arguments());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  zeros.give_results(*stack, op.schema().returns().size());
}

bool lacks_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (!op.hasKernelForDispatchKey(DispatchKey::CPU)) return false;
  for (const DispatchKey key :
       {DispatchKey::Meta, DispatchKey::CompositeExplicitAutograd,
        DispatchKey::CompositeExplicitAutogradNonFunctional, DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return false;
  }
  return !op.hasTag(at::Tag::data_dependent_output) && !op.hasTag(at::Tag::dynamic_output_shape);
}

bool needs_kernel(const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::" + name, ""});
  return op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

}  // namespace

struct MetaOperators::Registrations {
  torch::Library& of(const std::string& space, c10::DispatchKey key = c10::DispatchKey::Meta) {
    std::unique_ptr<torch::Library>& library = libraries[{space, key}];
    if (!library)
      library = std::make_unique<torch::Library>(torch::Library::IMPL, space, std::optional(key), __FILE__,
                                                 __LINE__);
    return *library;
  }
  // In Python torch replaces kernels by ones that are made of other operators, whose results on the way would
  // be counted.
  template <typename Kernel>
  void put_back(const std::string& name, Kernel* kernel) {
    of("aten").impl(name.c_str(), kernel);
  }
  // In Python torch has kernels of its own, which stay.
  template <typename Kernel>
  void add(const std::string& name, Kernel* kernel) {
    if (needs_kernel(name)) of("aten").impl(name.c_str(), kernel);
  }

  std::map<std::pair<std::string, c10::DispatchKey>, std::unique_ptr<torch::Library>> libraries;
};

MetaOperators::MetaOperators() : registrations_(std::make_unique<Registrations>()) {
  Registrations& all = *registrations_;
  all.add("index_select", &index_select);
  all.put_back("embedding_dense_backward", &embedding_dense_backward);
  all.put_back("native_layer_norm", &native_layer_norm);
  all.put_back("native_layer_norm_backward", &native_layer_norm_backward);
  all.put_back("_log_softmax", &at::meta::_log_softmax);
  all.put_back("_log_softmax_backward_data", &at::meta::_log_softmax_backward_data);
  all.put_back("_softmax", &at::meta::_softmax);
  all.put_back("_softmax_backward_data", &at::meta::_softmax_backward_data);
  all.put_back("addmm", &at::meta::addmm);
  all.put_back("addmv", &at::meta::addmv);
  all.put_back("baddbmm", &at::meta::baddbmm);
  all.put_back("elu", &at::meta::elu);
  all.put_back("elu_backward", &at::meta::elu_backward);
  all.put_back("glu", &at::meta::glu);
  all.put_back("hardsigmoid", &at::meta::hardsigmoid);
  all.put_back("hardsigmoid_backward", &at::meta::hardsigmoid_backward);
  all.put_back("leaky_relu", &at::meta::leaky_relu);
  all.put_back("leaky_relu_backward", &at::meta::leaky_relu_backward);
  all.put_back("mish", &at::meta::mish);
  all.put_back("mse_loss", &at::meta::mse_loss);
  all.put_back("smooth_l1_loss", &at::meta::smooth_l1_loss);
  all.put_back("softplus", &at::meta::softplus);
  all.put_back("softplus_backward", &at::meta::softplus_backward);
  all.put_back("gelu", &at::meta::gelu);
  all.put_back("gelu_backward", &at::meta::gelu_backward);
  all.put_back("nll_loss_backward", &at::meta::nll_loss_backward);
  all.put_back("nll_loss_forward", &at::meta::nll_loss_forward);
  all.put_back("sigmoid_backward", &at::meta::sigmoid_backward);
  all.put_back("silu", &at::meta::silu);
  all.put_back("silu_backward", &at::meta::silu_backward);
  all.put_back("tanh_backward", &at::meta::tanh_backward);
  all.put_back("threshold_backward", &at::meta::threshold_backward);
  all.add("_scaled_dot_product_flash_attention_for_cpu", &flash_attention);
  all.add("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_attention_backward);
  const auto on_zeros = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_zeros>(); };
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradMeta, c10::DispatchKey::Meta})
    all.of("aten", key).impl("scaled_dot_product_attention", &attention);
  all.of("aten").impl("_fused_sdp_choice", on_zeros());
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !lacks_kernel(*op)) continue;
    all.of(name.name.substr(0, name.name.find("::"))).impl(c10::toString(name).c_str(), on_zeros());
  }
}

MetaOperators::~MetaOperators() = default;

}  // namespace zerorun
