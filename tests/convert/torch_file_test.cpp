// Tests the reader of torch.save's files: dtypes, views, parameters, and tensors that exceed their storage.
#include "convert/torch_file.h"

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "tests/convert/pickle_builder.h"
#include "tests/convert/zip_builder.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

using Catch::Matchers::Contains;
namespace pk = pickled;

// Returns the bytes of 24 floats: 0, 1, 2, ...
std::string counting() {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0F);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

const std::string kFloats = pk::storage("FloatStorage", "0", 24);

// A file as torch.save writes it, with `value` and a storage "0" of 24 floats.
class Saved {
 public:
  explicit Saved(const std::string& value, const std::string& data = counting())
      : path_(folder_.write("x.pt", torch_archive(pk::whole(value), {{"0", data}}))),
        file_(local_file_system(), path_) {}

  std::optional<TorchTensor> tensor() const { return file_.tensor(file_.root(), "weight"); }
  std::vector<float> read(int64_t begin, int64_t numel) {
    std::vector<float> values(static_cast<size_t>(numel));
    file_.read(*tensor(), begin, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_;
  TorchFile file_;
};

// Returns the message with which the reader refuses the tensor `value`. CHECKs that the message names the
// file and the tensor.
std::string refusal(const std::string& value) {
  const std::string message = user_error([&] { Saved(value).tensor(); });
  CHECK_THAT(message, Contains("x.pt: weight: "));
  return message;
}

}  // namespace

TEST_CASE("A tensor of each dtype is found in its storage") {
  const std::vector<std::array<std::string, 2>> types = {
      {"FloatStorage", "F32"}, {"BFloat16Storage", "BF16"}, {"HalfStorage", "F16"},  {"DoubleStorage", "F64"},
      {"LongStorage", "I64"},  {"IntStorage", "I32"},       {"ShortStorage", "I16"}, {"CharStorage", "I8"},
      {"ByteStorage", "U8"},   {"BoolStorage", "BOOL"}};
  for (const auto& [type, dtype] : types) {
    INFO(type);
    const auto found = Saved(pk::tensor(pk::storage(type, "0", 12), 0, {3, 4}, {4, 1})).tensor();
    REQUIRE(found);
    CHECK(found->dtype == dtype);
    CHECK(found->numel == 12);
    CHECK(found->shape == std::vector<int64_t>{3, 4});
  }
  const auto scalar = Saved(pk::tensor(kFloats, 23, {}, {})).tensor();
  CHECK(scalar->numel == 1);
  const auto empty = Saved(pk::tensor(kFloats, 24, {0, 5}, {5, 1})).tensor();
  CHECK(empty->numel == 0);
}

TEST_CASE("A view is read from its offset, in the order of memory") {
  Saved slice(pk::tensor(kFloats, 8, {2, 3}, {3, 1}));
  CHECK(slice.read(0, 6) == std::vector<float>{8, 9, 10, 11, 12, 13});
  CHECK(slice.read(4, 2) == std::vector<float>{12, 13});
  Saved transposed(pk::tensor(kFloats, 6, {3, 2}, {1, 3}));
  CHECK(transposed.tensor()->strides == std::vector<int64_t>{1, 3});
  CHECK(transposed.read(1, 4) == std::vector<float>{7, 8, 9, 10});
  Saved with_one(pk::tensor(kFloats, 0, {2, 1, 3}, {3, 99, 1}));  // a dimension of size 1 may have any stride
  CHECK(with_one.read(5, 1) == std::vector<float>{5});
}

TEST_CASE("Parameters, and tensors with attributes, are tensors") {
  const std::string plain = pk::tensor(kFloats, 2, {4}, {1});
  const std::string hooks = pk::call(pk::global("collections", "OrderedDict"), ")");
  const auto utils = [](const std::string& name) { return pk::global("torch._utils", name); };
  CHECK(Saved(pk::call(utils("_rebuild_parameter"), pk::tuple({plain, pk::kTrue, hooks}))).tensor()->offset ==
        2);
  CHECK(Saved(pk::call(utils("_rebuild_parameter_with_state"), pk::tuple({plain, pk::kTrue, hooks, "}"})))
            .tensor()
            ->numel == 4);
  const std::string arguments =
      pk::tuple({kFloats, pk::integer(2), pk::integers({4}), pk::integers({1}), pk::kFalse, hooks});
  CHECK(Saved(pk::call(pk::global("torch._tensor", "_rebuild_from_type_v2"),
                       pk::tuple({utils("_rebuild_tensor_v2"), pk::global("torch.nn.parameter", "Parameter"),
                                  arguments, "}"})))
            .tensor()
            ->offset == 2);
  CHECK_FALSE(Saved(pk::integer(7)).tensor());
  CHECK_FALSE(Saved(pk::dict({{"a", plain}})).tensor());
}

TEST_CASE("A tensor that exceeds its storage, or cannot be read, is refused, and the message names it") {
  constexpr int64_t kHuge = int64_t{1} << 32;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {25}, {1})), Contains("goes beyond its storage of 24"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 20, {5}, {1})), Contains("goes beyond its storage of 24"));
  CHECK_THAT(refusal(pk::tensor(kFloats, -1, {5}, {1})), Contains("goes beyond its storage of 24"));
  CHECK_THAT(refusal(pk::tensor(kFloats, kMost, {5}, {1})), Contains("goes beyond its storage of 24"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {kHuge, kHuge}, {kHuge, 1})),
             Contains("goes beyond its storage of 24"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {kMost, 2}, {2, 1})), Contains("goes beyond its storage of 24"));
  // The size in the storage's id is not trusted: the archive's entry has 24 floats.
  CHECK_THAT(refusal(pk::tensor(pk::storage("FloatStorage", "0", kMost), 0, {25}, {1})),
             Contains("goes beyond its storage of 24"));
  CHECK_THAT(refusal(pk::tensor(pk::storage("DoubleStorage", "0", 24), 0, {13}, {1})),
             Contains("beyond its storage of 12"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {2, 3}, {6, 1})), Contains("leave gaps or overlap"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {2, 3}, {0, 1})), Contains("leave gaps or overlap"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {3, 3}, {1, 1})), Contains("leave gaps or overlap"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {3, 4}, {kMost, 1})), Contains("leave gaps or overlap"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {3, 4}, {4})), Contains("damaged"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, {-3}, {1})), Contains("damaged"));
  CHECK_THAT(refusal(pk::tensor(kFloats, 0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1))),
             Contains("damaged"));
  CHECK_THAT(refusal(pk::tensor(pk::integer(3), 0, {1}, {1})), Contains("damaged"));
  CHECK_THAT(refusal(pk::tensor(pk::tuple({}) + "Q", 0, {1}, {1})), Contains("without type and key"));
  CHECK_THAT(refusal(pk::tensor(pk::storage("QInt8Storage", "0", 24), 0, {1}, {1})),
             Contains("torch.QInt8Storage"));
  for (const char* key : {"1", "../0", "/etc/passwd", ""})
    CHECK_THAT(refusal(pk::tensor(pk::storage("FloatStorage", key, 24), 0, {1}, {1})),
               Contains(std::string("has no entry archive/data/") + key));
  const std::string none = pk::tuple({pk::kNone, pk::kTrue, pk::kNone});
  CHECK_THAT(refusal(pk::call(pk::global("torch._utils", "_rebuild_parameter"), none)),
             Contains("without a plain tensor"));
  CHECK_THAT(refusal(pk::call(pk::global("torch._utils", "_rebuild_sparse_tensor"), none)),
             Contains("dense tensor") && Contains("_rebuild_sparse_tensor"));
  CHECK_THAT(refusal(pk::call(pk::global("torch._tensor", "_rebuild_from_type_v2"), none)),
             Contains("subclass"));
}

TEST_CASE("A flipped bit in a storage is found when the storage is read") {
  const TemporaryFolder folder;
  std::string archive = torch_archive(pk::whole(pk::tensor(kFloats, 0, {24}, {1})), {{"0", counting()}});
  archive[archive.find(counting()) + 17] ^= 4;
  const auto path = folder.write("x.pt", archive);
  TorchFile file(local_file_system(), path);
  const auto tensor = file.tensor(file.root(), "weight");
  std::vector<float> values(1);
  CHECK_THAT(user_error([&] { file.read(*tensor, 0, std::as_writable_bytes(std::span(values))); }),
             Contains("x.pt") && Contains("CRC-32"));
}

TEST_CASE("An archive that torch.save did not write, or wrote on another machine, is refused") {
  const TemporaryFolder folder;
  const auto message = [&](const std::vector<std::pair<std::string, std::string>>& entries) {
    const auto path = folder.write("x.pt", ZipBuilder{.entries = entries}.build());
    return user_error([&] { TorchFile(local_file_system(), path); });
  };
  const std::string pickle = pk::whole(pk::kNone);
  CHECK(message({{"a/data.pkl", pickle}}) == "no error");
  CHECK_THAT(message({{"a/data.pkl", pickle}, {"a/byteorder", "big"}}), Contains("little-endian machine"));
  CHECK_THAT(message({{"a/data.pkl", pickle}, {"a/byteorder", std::string(1000, 'l')}}),
             Contains("little-endian machine"));
  CHECK_THAT(message({{"a/constants.pkl", pickle}}), Contains("no data.pkl"));
  CHECK_THAT(message({{"a/b/data.pkl", pickle}}), Contains("no data.pkl"));
}

}  // namespace zerorun::testing
