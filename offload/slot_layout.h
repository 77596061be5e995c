// How the state of a slice lies in a file, and in which chunks it comes to memory: a chunk is consecutive
// elements of the slice, with all their states, in consecutive bytes of the file. The file is one of a
// checkpoint (docs/checkpoint_format.md). Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/state_header.h"

namespace zerorun {

struct SliceState {
  std::string name;           // "master", "exp_avg"
  std::string dtype = "F32";  // as safetensors spells it
};

/// What the slice has of a parameter.
struct SlicePart {
  std::string parameter;
  int64_t begin;           // its first element, counted from the parameter's
  int64_t begin_in_slice;  // counted from the slice's
  int64_t numel;
};

struct SliceContents {
  std::string label;                            // for messages: "bucket 3 (wte.weight and 2 more)"
  std::map<std::string, std::string> metadata;  // for the header
  int64_t numel = 0;                            // elements, with padding
  std::vector<SliceState> states;
  std::vector<SlicePart> parts;  // by rising begin_in_slice
};

struct Chunk {
  int64_t begin;  // elements of the slice
  int64_t numel;
  int64_t offset;                      // bytes of the file: begins a block that has a checksum of its own
  int64_t bytes;                       // whole pages
  std::vector<int64_t> state_offsets;  // by state: bytes from the chunk's first
};

struct SlotLayout {
  std::string header;              // lies at the start of the first chunk
  size_t generation_at = 0;        // where in it kGenerationDigits digits are
  std::vector<Chunk> chunks;       // one behind the other
  std::vector<StateRange> ranges;  // offsets are from the start of the file
  int64_t bytes = 0;               // of the file
};

inline constexpr int kGenerationDigits = 12;

/// `chunk_bytes`: what a chunk may have, a multiple of kChecksumBlock; the first one may have more where its
/// header is long. `alignment`: elements; chunks and parts begin at multiples of it.
SlotLayout make_slot_layout(const SliceContents& contents, int64_t chunk_bytes, int64_t alignment);

}  // namespace zerorun
