# torch/torch.h takes 18 s to compile. So samples, tests and benchmarks share its precompiled header
# (REUSE_FROM this target).
file(WRITE ${CMAKE_BINARY_DIR}/torch_headers.cpp "#include <torch/torch.h>\n")
add_library(zerorun_torch_headers OBJECT ${CMAKE_BINARY_DIR}/torch_headers.cpp)
target_link_libraries(zerorun_torch_headers PUBLIC zerorun_flags zerorun_torch)
target_precompile_headers(zerorun_torch_headers PRIVATE <torch/torch.h>)
