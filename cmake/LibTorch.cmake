# The target zerorun_torch: LibTorch for CPU (libtorch_cpu and libc10 of the `torch` wheel).
#
# LibTorch's own CMake package fails without CUDA, so this file names the two libraries itself. LibTorch's
# folder is the first of: -DTORCH_DIR, $TORCH_DIR, the choice of scripts/setup (.deps/torch_dir).
#
# The project and its installed package (ZeroRunConfig.cmake) include this file. The package sets ZERORUN_BUILT_FOR_TORCH, the
# minor version that the installed libraries were compiled for (2.15), and takes no other.
#
# Sets ZERORUN_TORCH_VERSION (2.15.0) and ZERORUN_TORCH_MINOR (2.15).

if(NOT TORCH_DIR AND DEFINED ENV{TORCH_DIR})
  set(TORCH_DIR $ENV{TORCH_DIR})
endif()
if(NOT TORCH_DIR AND EXISTS ${PROJECT_SOURCE_DIR}/.deps/torch_dir)
  file(STRINGS ${PROJECT_SOURCE_DIR}/.deps/torch_dir TORCH_DIR LIMIT_COUNT 1)
endif()
set(TORCH_DIR "${TORCH_DIR}" CACHE PATH "Folder of LibTorch: holds include/ and lib/")

set(version_header ${TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${version_header} OR NOT EXISTS ${TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch in TORCH_DIR='${TORCH_DIR}': run scripts/setup, or give -DTORCH_DIR=FOLDER "
                      "with include/ and lib/ of a LibTorch")
endif()
file(READ ${version_header} version_text)
string(REGEX MATCH "define TORCH_VERSION [^\"]*\"([0-9.]+)" match "${version_text}")
set(ZERORUN_TORCH_VERSION ${CMAKE_MATCH_1})
string(REGEX MATCH "^[0-9]+\\.[0-9]+" ZERORUN_TORCH_MINOR "${ZERORUN_TORCH_VERSION}")

if(ZERORUN_BUILT_FOR_TORCH)
  if(NOT ZERORUN_TORCH_MINOR VERSION_EQUAL ZERORUN_BUILT_FOR_TORCH)
    message(FATAL_ERROR "This ZeroRun was built for LibTorch ${ZERORUN_BUILT_FOR_TORCH}, and TORCH_DIR=${TORCH_DIR} holds LibTorch "
                        "${ZERORUN_TORCH_VERSION}: give -DTORCH_DIR=FOLDER of a LibTorch ${ZERORUN_BUILT_FOR_TORCH}, or build and "
                        "install ZeroRun for LibTorch ${ZERORUN_TORCH_MINOR}")
  endif()
else()
  foreach(end OLDEST NEWEST)
    file(STRINGS ${PROJECT_SOURCE_DIR}/base/torch_version.h line REGEX "define ZERORUN_TORCH_${end}_MINOR")
    string(REGEX MATCH "[0-9]+$" minor "${line}")
    set(ZERORUN_TORCH_${end} 2.${minor})
  endforeach()
  if(ZERORUN_TORCH_MINOR VERSION_LESS ZERORUN_TORCH_OLDEST OR ZERORUN_TORCH_MINOR VERSION_GREATER_EQUAL 3)
    message(FATAL_ERROR "TORCH_DIR=${TORCH_DIR} holds LibTorch '${ZERORUN_TORCH_VERSION}', expected ${ZERORUN_TORCH_OLDEST} to "
                        "${ZERORUN_TORCH_NEWEST}: run scripts/setup or give another -DTORCH_DIR")
  elseif(ZERORUN_TORCH_MINOR VERSION_GREATER ZERORUN_TORCH_NEWEST)
    message(WARNING "LibTorch ${ZERORUN_TORCH_VERSION} in TORCH_DIR=${TORCH_DIR} is newer than ${ZERORUN_TORCH_NEWEST}, the newest that "
                    "ZeroRun has been tested with. Run all tests (scripts/test --all) before you rely on it")
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/torch_version "${ZERORUN_TORCH_MINOR}\n")  # for scripts/gpu_check
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
