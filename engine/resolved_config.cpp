#include "engine/resolved_config.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

// Why it could not be done, or nothing. A run that reads `file` meanwhile sees the old text or the new one.
std::string write_whole(const fs::path& file, const std::string& text) {
  const fs::path temporary = file.string() + ".tmp" + std::to_string(::getpid());
  errno = 0;
  std::ofstream stream(temporary, std::ios::binary);
  stream << text;
  stream.close();
  if (stream && std::rename(temporary.c_str(), file.c_str()) == 0) return {};
  const int error = errno;
  std::remove(temporary.c_str());
  return std::strerror(error == 0 ? EIO : error);
}

// What is wrong, or nothing.
std::string try_to_write(const Config& config, const fs::path& folder) {
  const fs::path file = folder / kResolvedConfigName;
  if (config.resolved.empty()) {
    return file.string() + ": there is no resolved configuration to write, as this Config was not made by " +
           "load_config() or parse_config(); leave InitializeOptions::output_folder empty";
  }
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string reason = error ? error.message() : write_whole(file, config.resolved);
  if (reason.empty()) return {};
  return file.string() + ": the resolved configuration cannot be written: " + reason +
         "; give InitializeOptions::output_folder a folder that rank 0 can write to";
}

// Throws rank 0's message on every rank; returns if it is empty.
void throw_on_every_rank(const std::string& message, Communicator& communicator) {
  const std::string label = "what rank 0 says of the resolved configuration";
  at::Tensor length = at::full({1}, static_cast<int64_t>(message.size()), at::kLong);
  communicator.broadcast(length, 0, label)->wait();
  if (length.item<int64_t>() == 0) return;
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (communicator.rank() == 0) std::memcpy(bytes.mutable_data_ptr(), message.data(), message.size());
  communicator.broadcast(bytes, 0, label)->wait();
  throw UserError(std::string(static_cast<const char*>(bytes.const_data_ptr()), bytes.numel()));
}

}  // namespace

void write_resolved_config(const Config& config, const fs::path& folder, Communicator& communicator) {
  const bool writes = communicator.rank() == 0 && !folder.empty();
  throw_on_every_rank(writes ? try_to_write(config, folder) : "", communicator);
}

}  // namespace zerorun
