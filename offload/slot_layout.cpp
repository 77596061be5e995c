#include "offload/slot_layout.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "checkpoint/file_system.h"

namespace zerorun {
namespace {

// Returns the chunks of a file whose header has `header_bytes` bytes.
std::vector<Chunk> make_chunks(const SliceContents& contents, int64_t chunk_bytes, int64_t alignment,
                               int64_t header_bytes) {
  int64_t element = 0;
  for (const SliceState& state : contents.states) element += checkpoint::element_bytes(state.dtype);
  std::vector<Chunk> chunks;
  for (int64_t begin = 0, offset = 0; begin < contents.numel;) {
    const bool is_long = begin == 0 && header_bytes > chunk_bytes / 2;
    const int64_t room =
        chunk_bytes + (is_long ? checkpoint::rounded_up(header_bytes, checkpoint::kChecksumBlock) : 0);
    int64_t end = begin == 0 ? header_bytes : 0;
    const int64_t fitting = (room - end) / (element * alignment) * alignment;
    ZR_CHECK(fitting > 0, "a chunk of " + std::to_string(chunk_bytes) + " bytes");
    Chunk chunk{.begin = begin,
                .numel = std::min(fitting, contents.numel - begin),
                .offset = offset,
                .bytes = 0,
                .state_offsets = {}};
    for (const SliceState& state : contents.states) {
      chunk.state_offsets.push_back(end);
      end += checkpoint::rounded_up(chunk.numel * checkpoint::element_bytes(state.dtype),
                                    checkpoint::kTensorAlignment);
    }
    begin += chunk.numel;
    chunk.bytes = begin < contents.numel ? room : checkpoint::rounded_up(end, checkpoint::kPageBytes);
    offset += chunk.bytes;
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

// Returns the ranges of the slice's parameters, chunk by chunk, in file order.
std::vector<checkpoint::StateRange> make_ranges(const SliceContents& contents,
                                                const std::vector<Chunk>& chunks) {
  std::vector<checkpoint::StateRange> ranges;
  for (const Chunk& chunk : chunks) {
    for (size_t state = 0; state < contents.states.size(); ++state) {
      const auto& [name, dtype] = contents.states[state];
      for (const SlicePart& part : contents.parts) {
        const int64_t begin = std::max(part.begin_in_slice, chunk.begin);
        const int64_t end = std::min(part.begin_in_slice + part.numel, chunk.begin + chunk.numel);
        if (begin >= end) continue;
        ranges.push_back({.parameter = part.parameter,
                          .state = name,
                          .dtype = dtype,
                          .begin = part.begin + begin - part.begin_in_slice,
                          .numel = end - begin,
                          .offset = chunk.offset + chunk.state_offsets[state] +
                                    (begin - chunk.begin) * checkpoint::element_bytes(dtype)});
      }
    }
  }
  return ranges;
}

}  // namespace

SlotLayout make_slot_layout(const SliceContents& contents, int64_t chunk_bytes, int64_t alignment) {
  ZR_CHECK(chunk_bytes % checkpoint::kChecksumBlock == 0,
           "chunks of " + std::to_string(chunk_bytes) + " bytes");
  ZR_CHECK(contents.numel > 0, contents.label + " has no elements");
  auto metadata = contents.metadata;
  const std::string no_generation(kGenerationDigits, '0');
  metadata["generation"] = no_generation;
  SlotLayout layout;
  // The header contains all offsets, and the offsets depend on the header's length. So this repeats until the
  // length does not change.
  for (int64_t header_bytes = checkpoint::kPageBytes;;
       header_bytes = static_cast<int64_t>(layout.header.size())) {
    layout.chunks = make_chunks(contents, chunk_bytes, alignment, header_bytes);
    layout.bytes = layout.chunks.back().offset + layout.chunks.back().bytes;
    layout.ranges = make_ranges(contents, layout.chunks);
    std::vector<checkpoint::StateRange> in_data = layout.ranges;
    for (checkpoint::StateRange& range : in_data) range.offset -= header_bytes;
    layout.header = checkpoint::state_header(metadata, in_data, layout.bytes - header_bytes, header_bytes);
    if (static_cast<int64_t>(layout.header.size()) == header_bytes) break;
  }
  layout.generation_at = layout.header.find(no_generation, layout.header.find("\"generation\""));
  return layout;
}

}  // namespace zerorun
