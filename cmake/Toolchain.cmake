# Compiler flags for ZeroRun's own code; ccache and a fast linker, if they are found; sanitizers, by option.

set(ZERORUN_SANITIZE "" CACHE STRING "Sanitizers to build with: empty, 'address,undefined' or 'thread'")
option(ZERORUN_FUZZ "Build the fuzz targets too (needs clang++)" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# -O3 costs compile time, and gains only where loops go over elements or bytes: these files add this option.
set(ZERORUN_OPTIMIZE_LOOPS $<$<CONFIG:Release>:-O3>)
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")  # CMake's default
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()

find_program(ZERORUN_CCACHE ccache)
if(ZERORUN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # These relaxed checks let ccache cache files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ZERORUN_CCACHE})
endif()

foreach(linker mold lld)
  find_program(ZERORUN_LINKER_${linker} NAMES ${linker} ld.${linker})
  # Debian's cross compilers find only their own linkers.
  if(ZERORUN_LINKER_${linker} AND NOT CMAKE_CROSSCOMPILING)
    add_link_options(-fuse-ld=${linker})
    break()
  endif()
endforeach()

# A unity build compiles several files as one: everything takes less time, one changed file more.
option(ZERORUN_UNITY "Compile several files as one (scripts/build does so in a new build folder)" OFF)
set(CMAKE_UNITY_BUILD ${ZERORUN_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 21)

# For files with a class that has members of a type in an unnamed namespace. g++ warns of such classes outside of a
# compilation's main file.
function(zerorun_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Programs and Python's extension module link the same static libraries, so these are position-independent.
# -fno-semantic-interposition (below) keeps calls within a library direct.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Programs use -fPIC instead of -fPIE: code that shares a precompiled header must have the same options.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)

add_library(zerorun_flags INTERFACE)
# -ffp-contract=off: fused multiply-adds would make results depend on the machine.
# -fmacro-prefix-map: messages name files within the project, and programs hold no path of the building machine.
# -Wno-restrict: g++ 12 gives false warnings for "text" + std::string (GCC PR 105651).
# -Wno-unknown-pragmas: clang does not know GCC's ivdep, with which some loops are marked.
target_compile_options(zerorun_flags INTERFACE -Wall -Wextra -Werror -ffp-contract=off
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:Clang>:-Wno-unknown-pragmas>
                       -fno-semantic-interposition
                       -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
target_include_directories(zerorun_flags INTERFACE ${PROJECT_SOURCE_DIR})

if(ZERORUN_SANITIZE)
  # With sanitizers, g++ 12 gives false warnings about uninitialized variables and array bounds, also in the
  # standard library's headers.
  add_compile_options(-fsanitize=${ZERORUN_SANITIZE} -fno-omit-frame-pointer -g1
                      "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-stringop-overread>" -Wno-array-bounds)
  if(ZERORUN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # ThreadSanitizer does not follow fences, of which LibTorch 2.15 has one in a header (c10/core/impl/PyObjectSlot.h).
    add_compile_options(-Wno-tsan)
  endif()
  add_link_options(-fsanitize=${ZERORUN_SANITIZE})
endif()

if(ZERORUN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ZERORUN_FUZZ needs clang++, found ${CMAKE_CXX_COMPILER}: use the preset fuzz (scripts/fuzz config)")
  endif()
  add_compile_options(-fno-sanitize-recover=all)  # an error found by a sanitizer must end the program
endif()
