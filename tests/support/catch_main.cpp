#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>

// Limits oneDNN to AVX-512 with fp16, so that it gives the same bits on all machines that have it. The next
// larger instruction set adds AMX tiles, which some virtual machines report at first and later lack.
int main(int argc, char** argv) {
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);
  return Catch::Session().run(argc, argv);
}
