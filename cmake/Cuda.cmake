# Decides whether the GPU part (cuda/) is built, and sets ZERORUN_WITH_CUDA accordingly. If it is built, this file
# enables CMake's language CUDA and defines the targets
#   zerorun_torch_cuda  LibTorch's CUDA libraries and the runtime that they use
#   zerorun_nccl        NCCL
#
# ZERORUN_CUDA: AUTO (build it if everything that it needs is found), ON (a missing part is an error), OFF.
#
# NCCL and CUDA's runtime are in wheels beside LibTorch's wheel, or in the toolkit. LibTorch's own libraries
# prefer those in the wheels. So this file does too, because a process must load only one NCCL and one runtime.

set(ZERORUN_CUDA AUTO CACHE STRING "Build the GPU part: AUTO (where everything for it is found), ON or OFF")
set_property(CACHE ZERORUN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ZERORUN_WITH_CUDA FALSE)

# Sets `missing` to a text that lists the missing parts.
macro(zerorun_look_for_cuda)
  set(missing)
  # CMake 3.25 sets a property of this target whether or not it exists, and CUDA 13 has no such library.
  if(NOT TARGET CUDA::nvToolsExt)
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_VERSION_MAJOR EQUAL 13)  # LibTorch's libraries are built for 13
    list(APPEND missing "a CUDA toolkit of version 13 (give -DCUDAToolkit_ROOT=FOLDER)")
  endif()
  if(NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
    set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})  # in case nvcc is not on PATH
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80)  # otherwise CMake would look for a GPU; each target sets its own value
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    list(APPEND missing "nvcc (give -DCMAKE_CUDA_COMPILER=FILE)")
  endif()
  foreach(library torch_cuda c10_cuda)
    if(NOT EXISTS ${TORCH_DIR}/lib/lib${library}.so)
      list(APPEND missing "lib${library}.so in ${TORCH_DIR}/lib")
    endif()
  endforeach()
  set(wheels ${TORCH_DIR}/../nvidia)
  find_path(ZERORUN_NCCL_INCLUDE nccl.h HINTS ${wheels}/nccl/include ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
  find_library(ZERORUN_NCCL_LIBRARY NAMES libnccl.so.2 nccl NO_CACHE
               HINTS ${wheels}/nccl/lib ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  if(NOT ZERORUN_NCCL_INCLUDE OR NOT ZERORUN_NCCL_LIBRARY)
    list(APPEND missing "NCCL (nccl.h and libnccl.so.2 in the toolkit or in a wheel beside LibTorch)")
  endif()
  list(JOIN missing ", " missing)
endmacro()

if(ZERORUN_CUDA STREQUAL "AUTO" AND ZERORUN_SANITIZE)
  message(STATUS "GPU part: not built, since a sanitizer is on (-DZERORUN_CUDA=ON builds it)")
elseif(ZERORUN_CUDA STREQUAL "AUTO" OR ZERORUN_CUDA)
  zerorun_look_for_cuda()
  if(NOT missing)
    set(ZERORUN_WITH_CUDA TRUE)
    message(STATUS "GPU part: built with nvcc ${CUDAToolkit_VERSION} and ${ZERORUN_NCCL_LIBRARY}")
  elseif(ZERORUN_CUDA STREQUAL "AUTO")
    message(STATUS "GPU part: not built, since these are missing: ${missing}")
  else()
    message(FATAL_ERROR "ZERORUN_CUDA is ON, and these are missing: ${missing}")
  endif()
else()
  message(STATUS "GPU part: not built, since ZERORUN_CUDA is OFF")
endif()
if(NOT ZERORUN_WITH_CUDA)
  return()
endif()

enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's option for C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()

set(runtime ${wheels}/cu13/lib/libcudart.so.13)
if(NOT EXISTS ${runtime})
  set(runtime CUDA::cudart)
endif()
add_library(zerorun_torch_cuda INTERFACE)
target_include_directories(zerorun_torch_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
# --no-as-needed: no symbol of libtorch_cuda is used, but loading it registers LibTorch's CUDA operators.
target_link_libraries(zerorun_torch_cuda INTERFACE zerorun_torch
  -Wl,--push-state,--no-as-needed ${TORCH_DIR}/lib/libtorch_cuda.so -Wl,--pop-state
  ${TORCH_DIR}/lib/libc10_cuda.so ${runtime})

add_library(zerorun_nccl INTERFACE)
target_include_directories(zerorun_nccl SYSTEM INTERFACE ${ZERORUN_NCCL_INCLUDE})
target_link_libraries(zerorun_nccl INTERFACE ${ZERORUN_NCCL_LIBRARY})
