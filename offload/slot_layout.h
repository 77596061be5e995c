// Computes how a slice's state is laid out in a file. The file is read into memory chunk by chunk. A chunk
// has consecutive elements of the slice with all of their states, in consecutive bytes of the file. The file
// has the format of a checkpoint file (docs/checkpoint_format.md). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/state_header.h"

namespace zerorun {

struct SliceState {
  std::string name;           // "master", "exp_avg"
  std::string dtype = "F32";  // as spelled in safetensors
};

/// The part of a parameter that is in the slice.
struct SlicePart {
  std::string parameter;
  int64_t begin;           // first element, counted from the start of the parameter
  int64_t begin_in_slice;  // the same element, counted from the start of the slice
  int64_t numel;
};

struct SliceContents {
  std::string label;                            // for messages: "bucket 3 (wte.weight and 2 more)"
  std::map<std::string, std::string> metadata;  // for the file's header
  int64_t numel = 0;                            // number of elements, including padding
  std::vector<SliceState> states;
  std::vector<SlicePart> parts;  // in ascending order of begin_in_slice
};

struct Chunk {
  int64_t begin;  // first element, counted from the start of the slice
  int64_t numel;
  int64_t offset;                      // in bytes from the start of the file; a multiple of kChecksumBlock
  int64_t bytes;                       // size in bytes, a multiple of the page size
  std::vector<int64_t> state_offsets;  // by state, in bytes from the start of the chunk
};

struct SlotLayout {
  std::string header;                          // stored at the start of the first chunk
  size_t generation_at = 0;                    // position of the generation number's digits in `header`
  std::vector<Chunk> chunks;                   // in file order, without gaps
  std::vector<checkpoint::StateRange> ranges;  // with offsets from the start of the file
  int64_t bytes = 0;                           // size of the file
};

inline constexpr int kGenerationDigits = 12;

/// `chunk_bytes` is the maximum size of a chunk and a multiple of kChecksumBlock; the first chunk may be
/// larger if the header is longer than half a chunk. `alignment` is in elements: chunks and parts begin at
/// multiples of it.
SlotLayout make_slot_layout(const SliceContents& contents, int64_t chunk_bytes, int64_t alignment);

}  // namespace zerorun
