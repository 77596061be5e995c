# Debian's package of what cmake --install installs: scripts/package makes dist/zerorun_VERSION_ARCHITECTURE.deb.
#
# LibTorch is not in it, as it is in no package of Debian: programs, zerorun_probe and zerorun_plan use the LibTorch in TORCH_DIR.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME zerorun)
set(CPACK_PACKAGE_CONTACT "ZeroRun <zerorun@localhost>" CACHE STRING "The package's maintainer")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Libraries and headers for C++ programs, and the command zerorun, which starts ranks.
Built for LibTorch ${ZERORUN_TORCH_VERSION}, which this package does not contain: pip installs
it (torch==${ZERORUN_TORCH_VERSION}). No licence has been chosen yet.")
# The installed libraries are static: programs that link them need these.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libspdlog-dev, liburing-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake")
# The package cannot depend on LibTorch's libraries, but dpkg-shlibdeps must find them.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TORCH_DIR}/lib)
if(ZERORUN_WITH_CUDA)
  cmake_path(GET ZERORUN_NCCL_LIBRARY PARENT_PATH nccl_folder)
  list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${wheels}/cu13/lib ${nccl_folder} ${CUDAToolkit_LIBRARY_DIR})
endif()

file(WRITE ${CMAKE_BINARY_DIR}/package/copyright
"ZeroRun has no licence yet: its owner has not chosen one. Until then nobody else has the right to copy, change or
distribute it.
")
install(FILES ${CMAKE_BINARY_DIR}/package/copyright ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The command has dygraphs in it.
if(EXISTS ${ZERORUN_DYGRAPHS_LICENCE})
  install(FILES ${ZERORUN_DYGRAPHS_LICENCE} DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright.dygraphs)
endif()

# What the package contains, so that scripts/package need not build the tests.
add_custom_target(zerorun_package_contents DEPENDS ${ZERORUN_LIBRARIES} zerorun zerorun_probe zerorun_plan)
if(TARGET zerorun_cuda)
  add_dependencies(zerorun_package_contents zerorun_cuda)
endif()
include(CPack)
