#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>

// The same instructions wherever tests run, as far as a machine has them. Beyond these are AMX's tiles, which
// some virtual machines offer and lose.
int main(int argc, char** argv) {
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);
  return Catch::Session().run(argc, argv);
}
