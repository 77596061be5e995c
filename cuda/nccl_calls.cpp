#include "cuda/nccl_calls.h"

#include "base/error.h"
#include "base/fnv1a.h"

namespace zerorun {
namespace {

ncclDataType_t type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    default:
      ZR_CHECK(false, std::string("no sums of ") + c10::toString(dtype));
  }
}

}  // namespace

std::string nccl_failure(ncclResult_t result) {
  const char* details = ncclGetLastError(nullptr);
  std::string words = std::string("NCCL failed: ") + ncclGetErrorString(result);
  if (details && *details) words += std::string(" (") + details + ")";
  return words + "; NCCL_DEBUG=INFO tells more";
}

bool reduces(const CollectiveCall& call) {
  return call.kind == Collective::reduce_scatter || call.kind == Collective::all_reduce;
}

void check_sums(std::span<const CollectiveCall> calls) {
  for (const CollectiveCall& call : calls) {
    if (reduces(call)) type_of(call.output.scalar_type());
  }
}

ncclResult_t enqueue(const CollectiveCall& call, ncclComm_t comm, cudaStream_t stream) {
  const void* from = call.input.const_data_ptr();
  void* to = call.output.mutable_data_ptr();
  switch (call.kind) {
    case Collective::reduce_scatter:
      return ncclReduceScatter(from, to, call.output.numel(), type_of(call.output.scalar_type()), ncclSum,
                               comm, stream);
    case Collective::all_gather:
      return ncclAllGather(from, to, call.input.nbytes(), ncclUint8, comm, stream);
    case Collective::all_reduce:
      return ncclAllReduce(from, to, call.output.numel(), type_of(call.output.scalar_type()), ncclSum, comm,
                           stream);
    case Collective::broadcast:
      return ncclBroadcast(from, to, call.output.nbytes(), ncclUint8, call.root, comm, stream);
    case Collective::barrier:
      break;
  }
  ZR_CHECK(false, std::string(name_of(call.kind)) + " on a GPU");
}

ncclResult_t enqueue(const NcclMessage& message, int other, ncclComm_t comm, cudaStream_t stream) {
  const at::Tensor& tensor = message.tensor;
  if (message.is_send)
    return ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, other, comm, stream);
  return ncclRecv(tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, other, comm, stream);
}

uint64_t shape_of(std::span<const CollectiveCall> calls) {
  uint64_t hash = kFnv1aStart;
  for (const CollectiveCall& call : calls) {
    hash = fnv1a(hash, static_cast<uint64_t>(call.kind));
    hash = fnv1a(hash, static_cast<uint64_t>(call.output.scalar_type()));
    hash = fnv1a(hash, static_cast<uint64_t>(call.output.numel()));
  }
  return hash;
}

}  // namespace zerorun
