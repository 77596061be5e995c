# Rules for cmake --install: headers, libraries, the launcher, and the package for find_package(ZeroRun).
# LibTorch is not copied: the package uses the LibTorch that ZeroRun was built with, or -DTORCH_DIR=FOLDER with one of the same
# minor version.
#
# Users include the headers include/zerorun/*.h. These include headers of other folders, which are installed in
# include/zerorun/internal.

include(GNUInstallDirs)

set(ZERORUN_LIBRARIES zerorun_plan_parts zerorun_engine zerorun_optim zerorun_pipeline zerorun_activations zerorun_tensor_parallel zerorun_zero zerorun_offload zerorun_monitor zerorun_checkpoint zerorun_config
                      zerorun_comm zerorun_device zerorun_kernels zerorun_base)
install(TARGETS ${ZERORUN_LIBRARIES} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# The installed zerorun_probe and zerorun_plan load LibTorch from TORCH_DIR, and libzerorun_cuda.so from the installed lib folder.
set_target_properties(zerorun_probe zerorun_plan PROPERTIES INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TORCH_DIR}/lib")
install(TARGETS zerorun zerorun_probe zerorun_plan RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET zerorun_cuda)
  install(TARGETS zerorun_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zerorun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(folder activations base checkpoint comm config device engine monitor offload optim pipeline plan tensor_parallel zero)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerorun/internal
          FILES_MATCHING PATTERN "*.h")
endforeach()

include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/ZeroRun)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ZeroRunConfig.cmake.in ${CMAKE_BINARY_DIR}/ZeroRunConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ZeroRunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ZeroRunConfig.cmake ${CMAKE_BINARY_DIR}/ZeroRunConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake DESTINATION ${package})
