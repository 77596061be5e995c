# The target zerorun_torch: LibTorch 2.11 for CPU (libtorch_cpu and libc10 of the `torch` wheel).
#
# LibTorch's own CMake package fails without CUDA, so this file names the two libraries itself. LibTorch's
# folder is the first of: -DTORCH_DIR, $TORCH_DIR, the choice of scripts/setup (.deps/torch_dir).

set(ZERORUN_TORCH_VERSION 2.11.0)

if(NOT TORCH_DIR AND DEFINED ENV{TORCH_DIR})
  set(TORCH_DIR $ENV{TORCH_DIR})
endif()
if(NOT TORCH_DIR AND EXISTS ${PROJECT_SOURCE_DIR}/.deps/torch_dir)
  file(STRINGS ${PROJECT_SOURCE_DIR}/.deps/torch_dir TORCH_DIR LIMIT_COUNT 1)
endif()
if(NOT TORCH_DIR)
  set(TORCH_DIR ${PROJECT_SOURCE_DIR}/.deps/wheels/torch)
endif()
set(TORCH_DIR ${TORCH_DIR} CACHE PATH "Folder of LibTorch ${ZERORUN_TORCH_VERSION}: holds include/ and lib/")

set(version_header ${TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${version_header} OR NOT EXISTS ${TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch in TORCH_DIR=${TORCH_DIR}: run scripts/setup, or give -DTORCH_DIR=FOLDER "
                      "with include/ and lib/ of LibTorch ${ZERORUN_TORCH_VERSION}")
endif()
file(READ ${version_header} version_text)
string(REGEX MATCH "define TORCH_VERSION [^\"]*\"([0-9.]+)" match "${version_text}")
set(found_version ${CMAKE_MATCH_1})
if(NOT found_version VERSION_EQUAL ZERORUN_TORCH_VERSION)
  message(FATAL_ERROR "TORCH_DIR=${TORCH_DIR} holds LibTorch '${found_version}', expected ${ZERORUN_TORCH_VERSION}: "
                      "run scripts/setup or give another -DTORCH_DIR")
endif()

find_package(Threads REQUIRED)
add_library(zerorun_torch INTERFACE)
# -idirafter: LibTorch's include folder contains an fmt that would break the system's spdlog if it came first.
target_compile_options(zerorun_torch INTERFACE
  "SHELL:-idirafter ${TORCH_DIR}/include" "SHELL:-idirafter ${TORCH_DIR}/include/torch/csrc/api/include")
target_link_directories(zerorun_torch INTERFACE ${TORCH_DIR}/lib)
target_link_libraries(zerorun_torch INTERFACE
  ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so Threads::Threads)
# libtorch_cpu is linked to a few CUDA runtime libraries, which it finds at run time by $ORIGIN. The linker does
# not find them, and would report an error without these options.
target_link_options(zerorun_torch INTERFACE
  -Wl,--allow-shlib-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:ZERORUN_FINDS_TORCH>>>:-Wl,-rpath,${TORCH_DIR}/lib>)
