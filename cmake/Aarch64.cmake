# Toolchain file: compiles for aarch64 with Debian's cross compiler, and runs programs with qemu-user (preset aarch64).
#
# scripts/cross_aarch64 makes .deps/aarch64, with Debian's libraries for arm64 and LibTorch's wheel for aarch64. The
# compiler brings its own C and C++ libraries.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

get_filename_component(zerorun_deps ${CMAKE_CURRENT_LIST_DIR}/../.deps ABSOLUTE)
set(zerorun_sysroot ${zerorun_deps}/aarch64/root)
set(CMAKE_FIND_ROOT_PATH ${zerorun_sysroot} ${zerorun_deps}/valijson)  # valijson is headers only
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# Some headers, such as Catch2's, are included without a search of CMake.
set(CMAKE_CXX_FLAGS_INIT
    "-isystem ${zerorun_sysroot}/usr/include -isystem ${zerorun_sysroot}/usr/include/aarch64-linux-gnu")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=${zerorun_sysroot}/usr/lib/aarch64-linux-gnu:${zerorun_sysroot}/lib/aarch64-linux-gnu)
