// What gpu_main.cpp calls in the library that holds a program's tests.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

extern "C" int run_gpu_tests(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
