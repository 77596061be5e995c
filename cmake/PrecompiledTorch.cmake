# torch/torch.h takes 18 s to compile. So the tests share its precompiled header, and so do samples and benchmarks, which are
# compiled with other options: target_precompile_headers(TARGET REUSE_FROM zerorun_torch_headers).

# zerorun_precompile_torch(NAME): the target NAME, for REUSE_FROM, with the compile options of the current folder.
function(zerorun_precompile_torch name)
  file(CONFIGURE OUTPUT torch_headers.cpp CONTENT "#include <torch/torch.h>\n")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/torch_headers.cpp)
  target_link_libraries(${name} PUBLIC zerorun_flags zerorun_torch)
  target_precompile_headers(${name} PRIVATE <torch/torch.h>)
endfunction()

zerorun_precompile_torch(zerorun_torch_headers)
