// The entry point of a library of GPU tests, which gpu_main.cpp calls.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

extern "C" int run_gpu_tests(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
