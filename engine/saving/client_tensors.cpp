#include "engine/saving/client_tensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/json_text.h"
#include "checkpoint/safetensors_folder.h"
#include "checkpoint/safetensors_reader.h"
#include "comm/agreement.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/save_checks.h"
#include "engine/saving/state_pins.h"
#include "zero/interception.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

// Contiguous, in host memory, and not the program's.
at::Tensor host_copy_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  return plain.is_alias_of(tensor) ? plain.clone() : plain;
}

checkpoint::StateRange bytes_at(const std::string& name, int64_t offset, int64_t bytes) {
  return {.parameter = name, .state = "", .dtype = "U8", .begin = 0, .numel = bytes, .offset = offset};
}

ClientTensors read_client_file(checkpoint::FileSystem& files, const fs::path& path,
                               const checkpoint::StateFileFacts& facts) {
  // This reader compares the checksums, which SafetensorsReader does not know.
  checkpoint::StateFileReader blocks(files, path, facts);
  const SafetensorsReader contents(path, files);
  std::vector<std::pair<uint64_t, std::string>> order;  // by place, so that each block is read once
  int64_t header_bytes = facts.bytes;
  for (const auto& [name, info] : contents.tensors()) {
    order.emplace_back(contents.offset_of(info), name);
    header_bytes = std::min(header_bytes, static_cast<int64_t>(contents.offset_of(info)));
  }
  std::vector<std::byte> header(static_cast<size_t>(header_bytes));
  blocks.read(bytes_at("header", 0, header_bytes), 0, header);
  std::ranges::sort(order);
  ClientTensors tensors;
  for (const auto& [offset, name] : order) {
    const TensorInfo& info = contents.tensors().at(name);
    const at::Tensor tensor = at::empty(info.shape, dtype_of(info.dtype));
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    blocks.read(bytes_at(name, static_cast<int64_t>(offset), bytes), 0,
                {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<size_t>(bytes)});
    tensors[name] = tensor;
  }
  return tensors;
}

// Name, dtype and shape of each tensor, as JSON.
std::string describe_tensors(const ClientTensors& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    list.push_back({name, spelled(tensor.scalar_type()), tensor.sizes().vec()});
  return list.dump();
}

ClientTensors allocate_described(const std::string& description) {
  ClientTensors tensors;
  for (const nlohmann::json& entry : nlohmann::json::parse(description)) {
    tensors[entry.at(0).get<std::string>()] =
        at::empty(entry.at(2).get<std::vector<int64_t>>(), dtype_of(entry.at(1).get<std::string>()));
  }
  return tensors;
}

}  // namespace

void check_client_tensors(const ClientTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const std::string where = "CheckpointOptions::client_tensors: " + checkpoint::printable_text(name);
    if (!can_name_tensor(name))
      throw UserError(where + ": a safetensors file cannot have this name: give it another one, in UTF-8");
    if (!tensor.defined()) throw UserError(where + " is an undefined tensor: leave it out");
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta())
      throw UserError(where + " is a sparse, quantized or meta tensor: pass a dense one");
    if (owner_of(tensor))  // copying it may be a collective, and only rank 0 copies
      throw UserError(where + " lies in the memory of an engine: pass a clone() that all ranks make");
    try {
      spelled(tensor.scalar_type());
    } catch (const UserError& error) {
      throw UserError(where + ": " + error.what() + ": convert it");
    }
  }
}

checkpoint::FileToWrite file_of_client_tensors(const ClientTensors& tensors) {
  checkpoint::FileToWrite file{.name = checkpoint::kClientTensorsFile, .metadata = {}, .ranges = {}};
  std::vector<const ClientTensors::value_type*> order;
  for (const auto& named : tensors) order.push_back(&named);
  // Wide elements first: so each tensor's data is aligned to its elements.
  std::ranges::stable_sort(order, std::greater(),
                           [](const auto* named) { return named->second.element_size(); });
  std::vector<TensorToStore> stored;
  for (const auto* named : order) {
    const auto& [name, tensor] = *named;
    const char* dtype = spelled(tensor.scalar_type());
    stored.push_back({.name = name, .dtype = dtype, .shape = tensor.sizes().vec()});
    file.ranges.push_back(
        {.range = {.parameter = name, .state = "", .dtype = dtype, .begin = 0, .numel = tensor.numel()},
         .source = pinned(host_copy_of(tensor))});
  }
  if (!stored.empty()) file.header = safetensors_header(stored);
  return file;
}

ClientTensors read_client_tensors(checkpoint::FileSystem& files, const fs::path& folder,
                                  const checkpoint::Manifest& manifest, Communicator& communicator) {
  const auto facts = manifest.files.find(checkpoint::kClientTensorsFile);
  if (facts == manifest.files.end()) return {};
  const std::string label = "the tensors of client_state";
  ClientTensors tensors;
  on_all_ranks(communicator, label, [&] {
    if (communicator.rank() == 0)
      tensors = read_client_file(files, folder / checkpoint::kClientTensorsFile, facts->second);
  });
  if (communicator.world_size() == 1) return tensors;
  const std::string description = exchange_texts(describe_tensors(tensors), communicator, label).front();
  if (communicator.rank() > 0) tensors = allocate_described(description);
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() == 0) continue;
    communicator.broadcast(tensor.view({-1}).view(at::kByte), /*root=*/0, label)->wait();
  }
  return tensors;
}

}  // namespace zerorun
