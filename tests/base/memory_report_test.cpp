// The report about a lack of memory: what it shows of given numbers, and which use it names.
#include "base/memory_report.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kMib = 1 << 20;

std::string text_of(const MemoryNow& memory, bool allocation_failed) {
  std::string text;
  for (const std::string& line : memory_report(memory, allocation_failed)) text += line + '\n';
  return text;
}

MemoryNow example() {
  MemoryNow memory{.rank = 3,
                   .phase = MemoryPhase::counted,
                   .step = 11,
                   .resident = 900 * kMib,
                   .resident_before = 300 * kMib};
  memory.now[static_cast<int>(MemoryUse::parameters)] = 100 * kMib;
  memory.before[static_cast<int>(MemoryUse::parameters)] = 100 * kMib;
  memory.now[static_cast<int>(MemoryUse::gathered)] = 50 * kMib;
  memory.before[static_cast<int>(MemoryUse::gathered)] = 10 * kMib;
  memory.remedies[static_cast<int>(MemoryUse::other)] = {MemoryRemedy::smaller_micro_batch,
                                                         MemoryRemedy::recompute, MemoryRemedy::none};
  memory.remedies[static_cast<int>(MemoryUse::gathered)] = {MemoryRemedy::fewer_live};
  return memory;
}

// Throws with a scope open for each of `uses`, the first one outermost.
void fail_for(const std::vector<MemoryUse>& uses, size_t next = 0) {
  if (next == uses.size()) throw std::bad_alloc();
  const AllocatingFor scope(uses[next], static_cast<int64_t>(next + 1) * kMib);
  fail_for(uses, next + 1);
}

}  // namespace

TEST_CASE("A report shows the uses that have bytes, what grew most, and what may help against it") {
  const std::string killed = text_of(example(), false);
  CHECK_THAT(killed, Contains("memory of rank 3 in MiB, in step 12"));
  CHECK_THAT(killed, Contains("  parameters                            100.0        100.0\n"));
  CHECK_THAT(killed, Contains("  activations and the rest              750.0        190.0\n"));
  CHECK_THAT(killed, Contains("  resident memory of the process        900.0        300.0\n"));
  CHECK_THAT(killed, Contains("grew most: activations and the rest, by 560.0 MiB\n"));
  CHECK_THAT(killed, Contains("what may help: a smaller train_micro_batch_size_per_gpu, with more "
                              "gradient_accumulation_steps; zerorun.recompute"));
  CHECK_THAT(killed, !Contains("gradients  ") && !Contains("was wanted"));
}

TEST_CASE("A failed allocation is named by the scope it was in, and else it was the program's") {
  MemoryNow memory = example();
  CHECK_THAT(text_of(memory, true), Contains("memory was wanted: for activations and the rest\n"));
  memory.noted = 1;
  memory.use = MemoryUse::gathered;
  memory.wanted = 64 * kMib;
  CHECK_THAT(text_of(memory, true), Contains("memory was wanted: 64.0 MiB for gathered parameters\n"));
  CHECK_THAT(text_of(memory, true),
             Contains("what may help: a smaller zero_optimization.stage3_max_live_parameters\n"));
  memory.use = static_cast<MemoryUse>(200);  // the launcher reads what the rank has written
  CHECK_NOTHROW(text_of(memory, true));
}

TEST_CASE("A kill names what memory was being filled for, and what ran out in initialize() is not counted") {
  MemoryNow memory = example();
  memory.allocating = static_cast<int64_t>(MemoryUse::gathered) + 1;
  CHECK_THAT(text_of(memory, false), Contains("memory was being filled: for gathered parameters\n") &&
                                         Contains("stage3_max_live_parameters"));
  memory.phase = MemoryPhase::initializing;
  CHECK_THAT(text_of(memory, false), Contains("memory of rank 3: it ran out in initialize()\n") &&
                                         Contains("for gathered parameters") && !Contains("grew"));
  memory.allocating = 99;  // of a rank that writes something else
  CHECK_THAT(text_of(memory, false), !Contains("filled"));
  CHECK(text_of(MemoryNow(), true).empty());
}

TEST_CASE("On a GPU the resident memory is not what the uses have") {
  MemoryNow memory = example();
  memory.on_device = 1;
  CHECK_THAT(text_of(memory, false), !Contains("activations") && Contains("grew most: gathered parameters"));
}

TEST_CASE("The innermost scope notes its use, and counting again forgets it") {
  MemoryMeter meter(0, false, {});
  CHECK_THROWS(fail_for({MemoryUse::buckets, MemoryUse::moments}));
  CHECK(memory_now().noted == 1);
  CHECK(memory_now().use == MemoryUse::moments);
  CHECK(memory_now().wanted == 2 * kMib);
  meter.update({});
  CHECK(memory_now().noted == 0);
  const AllocatingFor unharmed(MemoryUse::messages);
  CHECK_THROWS(fail_for({MemoryUse::gradients}));
  CHECK(memory_now().use == MemoryUse::gradients);
}

TEST_CASE(
    "The numbers of a process are the sum over its engines, and outlive an engine until another counts") {
  const auto parameters = [] { return memory_now().now[static_cast<int>(MemoryUse::parameters)]; };
  BytesByUse bytes{};
  bytes[static_cast<int>(MemoryUse::parameters)] = 5;
  MemoryMeter first(0, false, {});
  first.update(bytes);
  {
    MemoryMeter second(0, false, {});
    second.update(bytes);
    CHECK(parameters() == 10);
  }
  CHECK(parameters() == 10);
  first.end_step(1, bytes);
  CHECK(parameters() == 5);
  CHECK(memory_now().before == bytes);
  CHECK(memory_now().step == 1);
}

TEST_CASE("Texts that tell of a lack of memory") {
  CHECK(tells_of_lack_of_memory("std::bad_alloc"));
  CHECK(
      tells_of_lack_of_memory("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."));
  CHECK(tells_of_lack_of_memory("GPU 0 has no 5 bytes of memory left (1 free): out of memory"));
  CHECK(tells_of_lack_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB"));
  CHECK_FALSE(tells_of_lack_of_memory("rank 1 ran out of steps"));
  MemoryMeter meter(0, false, {});
  meter.update({});
  CHECK_THAT(memory_report_of("std::bad_alloc"), Contains("\nmemory of rank 0 in MiB"));
  CHECK(memory_report_of("another error").empty());
}

}  // namespace zerorun::testing
