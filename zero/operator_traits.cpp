#include "zero/operator_traits.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace zerorun {

bool only_calls_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

bool decomposes(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         (op.operator_name().name.starts_with("aten::_foreach_") &&
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
}

bool is_random(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
         std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return argument.name() == "generator"; });
}

bool is_random_fill(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  static constexpr std::string_view names[] = {"aten::uniform_",     "aten::normal_", "aten::random_",
                                               "aten::exponential_", "aten::cauchy_", "aten::log_normal_",
                                               "aten::geometric_"};
  return std::find(std::begin(names), std::end(names), name.name) != std::end(names) ||
         (name.name == "aten::bernoulli_" && name.overload_name == "float");
}

bool only_allocates(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::empty" || name == "aten::empty_strided";
}

bool returns_tensors_only(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
           return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
                  result.type()->isSubtypeOf(*c10::ListType::ofTensors());
         });
}

std::optional<size_t> aliased_argument(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* wanted = schema.returns()[result].alias_info();
  for (size_t index = 0; wanted && index < schema.arguments().size(); ++index) {
    const c10::AliasInfo* alias = schema.arguments()[index].alias_info();
    if (alias && alias->isWrite() && alias->beforeSets() == wanted->beforeSets()) return index;
  }
  return {};
}

bool only_writes_in_place(const c10::FunctionSchema& schema) {
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    if (!aliased_argument(schema, index)) return false;
  }
  return std::none_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();  // out=
      });
}

bool is_for_the_host(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::scalar_tensor" || name == "aten::randperm";
}

bool only_copies(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::_to_copy" || name == "aten::clone";
}

bool is_resize(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::resize_" || name == "aten::resize_as_";
}

}  // namespace zerorun
