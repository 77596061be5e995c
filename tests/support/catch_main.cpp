#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>

// Limits oneDNN to the same instruction set on all machines that have it. The next larger set would add AMX
// tiles, which some virtual machines offer and then lose.
int main(int argc, char** argv) {
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);
  return Catch::Session().run(argc, argv);
}
