// One GPU: its memory, streams and kernels. Owned by the communicator. Usable by any thread whose current GPU
// is this one. The constructor makes it the current GPU of the calling thread; LibTorch does the same for its
// backward threads.
//
// allocate() uses cudaMalloc() and not LibTorch's caching allocator, because this memory lives as long as the
// engine and is used by any stream; events order the uses.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>
#include <vector>

#include "cuda/cuda_streams.h"
#include "cuda/kernels.h"
#include "device/device.h"

namespace zerorun {

class CudaDevice : public Device {
 public:
  /// Throws UserError if GPU `index` does not exist or is too old for the kernels.
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  c10::Device location() const override { return location_; }
  CudaStreams& streams() override { return streams_; }
  /// In bytes: the alignment of cudaMalloc(), which cuBLAS prefers.
  int64_t alignment() const override { return 256; }
  /// The memory is filled with zeros, which every stream sees when the call returns. Only cudaMalloc() may
  /// wait for other streams.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  at::Tensor allocate_on_stream(int64_t numel, at::ScalarType dtype) override;
  void record_stream(const at::Tensor& memory, StreamId stream) override;
  void empty_cache() override;
  /// The memory is page-locked.
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override;
  std::shared_ptr<void> pin(void* memory, size_t bytes) override;
  /// NVLink and network reach their bandwidth with some MiB from each rank.
  int64_t bucket_bytes(int world_size) const override;

  void zero(const at::Tensor& values) override;
  void copy(const at::Tensor& to, const at::Tensor& from) override;
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                   const FiniteCheck& finite_check) override;
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                  const FiniteCheck& finite_check) override;
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override;
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override;
  void add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number, double weight) override;
  void publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) override;
  void decide(const at::Tensor& exchange, int ranks, const StepRule& rule) override;
  void update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) override;
  void follow_written(const at::Tensor& master, const at::Tensor& values) override;

 private:
  cudaStream_t stream() const { return streams_.handle(streams_.current()); }
  cuda::Launch launch() const { return {stream(), max_blocks_}; }
  cuda::SquaresScratch* scratch_of(cudaStream_t stream);
  void check_here(const at::Tensor& tensor) const;
  cuda::Target target(const at::Tensor& tensor) const;
  cuda::Source source(const at::Tensor& tensor) const;
  cuda::FiniteCheck on_device(const FiniteCheck& finite_check) const;

  c10::Device location_;
  int64_t max_blocks_;
  CudaStreams streams_;
  std::mutex scratch_mutex_;
  std::vector<std::pair<cudaStream_t, cuda::SquaresScratch*>> scratch_;
};

}  // namespace zerorun
