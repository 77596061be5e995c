// libFuzzer targets for the readers of foreign files (`scripts/fuzz safetensors|zip|pickle`). A reader must
// read any bytes, or refuse them with a UserError, and must keep its stated limits.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/safetensors_reader.h"
#include "convert/pickle_fields.h"
#include "convert/torch_file.h"

namespace zerorun {
using namespace checkpoint;
using namespace convert;
namespace {

// A file system with one file, which can only be read.
class OneFile : public FileSystem {
 public:
  explicit OneFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  int open(const std::filesystem::path&) override { return 0; }
  void close(int) override {}
  int64_t size(int) override { return static_cast<int64_t>(bytes_.size()); }
  int64_t read(int, std::span<std::byte> into, int64_t offset) override {
    if (offset < 0) std::abort();
    if (offset >= size(0)) return 0;
    const auto rest = bytes_.subspan(static_cast<size_t>(offset));
    const size_t count = std::min(rest.size(), into.size());
    std::memcpy(into.data(), rest.data(), count);
    return static_cast<int64_t>(count);
  }
  std::optional<std::vector<std::string>> list(const std::filesystem::path&) override { return std::nullopt; }

  // A reader must not call any of these functions, except has_descriptors().
  int create(const std::filesystem::path&, Caching) override { std::abort(); }
  int create_nameless(const std::filesystem::path&) override { std::abort(); }
  int link_open(int, const std::filesystem::path&) override { std::abort(); }
  int allocate(int, int64_t) override { std::abort(); }
  bool has_descriptors() const override { return false; }
  int64_t write(int, std::span<const std::byte>, int64_t) override { std::abort(); }
  int sync(int) override { std::abort(); }
  int make_folder(const std::filesystem::path&) override { std::abort(); }
  int sync_folder(const std::filesystem::path&) override { std::abort(); }
  int rename(const std::filesystem::path&, const std::filesystem::path&) override { std::abort(); }
  int link(const std::filesystem::path&, const std::filesystem::path&) override { std::abort(); }
  int exchange(const std::filesystem::path&, const std::filesystem::path&) override { std::abort(); }
  int remove_file(const std::filesystem::path&) override { std::abort(); }
  int remove_folder(const std::filesystem::path&) override { std::abort(); }
  int open_folder(const std::filesystem::path&) override { std::abort(); }
  std::optional<std::vector<std::string>> list_open(int) override { std::abort(); }
  int open_at(int, const std::string&) override { std::abort(); }
  int remove_at(int, const std::string&) override { std::abort(); }
  std::optional<std::filesystem::path> link_target(const std::filesystem::path&) override { std::abort(); }
  std::optional<FileIdentity> identity(const std::filesystem::path&) override { std::abort(); }
  std::shared_ptr<FolderLock> lock_folder(const std::filesystem::path&) override { std::abort(); }

 private:
  std::span<const std::byte> bytes_;
};

[[maybe_unused]] void read_safetensors(std::span<const std::byte> bytes) {
  OneFile files(bytes);
  const SafetensorsReader reader("fuzzed", files);
  size_t covered = 0;
  for (const auto& [name, info] : reader.tensors()) covered += reader.read(name).size();
  if (covered > bytes.size()) std::abort();  // tensors overlap
}

// Reads the tensors in `value`. Visits at most `depth` levels and `left` values, since a hostile file may
// nest without end.
void read_tensors(TorchFile& file, const PickleValue& value, int depth, int& left) {
  if (depth == 0 || left-- <= 0) return;
  if (const auto tensor = file.tensor(value, "value")) {
    constexpr int64_t kMostElements = 1 << 12;
    std::vector<std::byte> values(static_cast<size_t>(std::min(tensor->numel, kMostElements)) * 8);
    const size_t size = tensor->dtype == "F64" || tensor->dtype == "I64" ? 8 : tensor->dtype == "F32" ? 4 : 1;
    if (size > 1) file.read(*tensor, 0, std::span(values).first(values.size() / 8 * size));
    return;
  }
  for (size_t index = 0; index < value.size(); ++index)
    read_tensors(file, value.item(index), depth - 1, left);
}

[[maybe_unused]] void read_zip(std::span<const std::byte> bytes) {
  OneFile files(bytes);
  TorchFile file(files, "fuzzed");
  int left = 1000;
  read_tensors(file, file.root(), 20, left);
}

[[maybe_unused]] void read_pickle(std::span<const std::byte> bytes) {
  const Pickle pickle(bytes, "fuzzed");
  const PickledField root{"fuzzed", pickle.root()};
  to_json(root).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace
}  // namespace zerorun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    zerorun::ZERORUN_FUZZED(std::as_bytes(std::span(data, size)));
  } catch (const zerorun::UserError&) {  // the expected way to refuse the bytes
  }
  return 0;
}
