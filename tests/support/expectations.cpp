#include "tests/support/expectations.h"

#include <cstring>
#include <stdexcept>

namespace zerorun::testing {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  expect(found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type(),
         what + ": another shape or type");
  const at::Tensor a = found.detach().clone(at::MemoryFormat::Contiguous);
  const at::Tensor b = expected.detach().clone(at::MemoryFormat::Contiguous);
  if (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return;
  const double distance = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  throw std::runtime_error(what + ": differs by up to " + std::to_string(distance));
}

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                 const std::string& what) {
  expect(found.size() == expected.size(), what);
  for (size_t index = 0; index < found.size(); ++index)
    expect_same(found[index], expected[index], what + ", parameter " + std::to_string(index));
}

void expect_same(const torch::nn::Module& found, const torch::nn::Module& expected, const std::string& what) {
  const auto compare = [&](const auto& left, const auto& right) {
    expect(left.size() == right.size(), what + ": another number of tensors");
    for (size_t index = 0; index < left.size(); ++index) {
      if (!right[index].value().defined()) continue;
      expect_same(left[index].value(), right[index].value(), what + ", " + right[index].key());
    }
  };
  compare(found.named_parameters(), expected.named_parameters());
  compare(found.named_buffers(), expected.named_buffers());
}

void expect_throws(const std::function<void()>& action, const std::string& part, const std::string& what) {
  try {
    action();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    expect(message.find(part) != std::string::npos,
           what + ": threw, but not about \"" + part + "\": " + message);
    return;
  }
  throw std::runtime_error(what + ": did not throw");
}

}  // namespace zerorun::testing
