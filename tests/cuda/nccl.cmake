# Tests of communication over NCCL.

# The watchdog does not depend on CUDA, so its tests run everywhere.
zerorun_test(nccl_watchdog_test TORCH LABELS unit
  SOURCES nccl_watchdog_test.cpp nccl_watchdog_thread_test.cpp store_courier_test.cpp ${PROJECT_SOURCE_DIR}/cuda/issue_history.cpp
          ${PROJECT_SOURCE_DIR}/cuda/nccl_watchdog.cpp ${PROJECT_SOURCE_DIR}/cuda/store_courier.cpp
  LIBRARIES zerorun_comm)

# This test forks, so it has a program of its own.
zerorun_test(nccl_stopped_rank_test TORCH LABELS ranks
  SOURCES stopped_rank_test.cpp
          ${PROJECT_SOURCE_DIR}/cuda/issue_history.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_watchdog.cpp
          ${PROJECT_SOURCE_DIR}/cuda/store_courier.cpp
  LIBRARIES zerorun_rank_processes)

if(ZERORUN_WITH_CUDA)
  zerorun_test(nccl_library_test TORCH LABELS unit
    SOURCES nccl_library_test.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_environment.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_library.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_registration.cpp
            ${PROJECT_SOURCE_DIR}/cuda/peers.cpp
    LIBRARIES zerorun_comm zerorun_nccl)

  zerorun_test(nccl_requests_test TORCH LABELS unit
    SOURCES nccl_blocking_test.cpp nccl_messages_test.cpp nccl_requests_test.cpp fake_cuda.cpp fake_nccl.cpp ${PROJECT_SOURCE_DIR}/cuda/cuda_check.cpp
            ${PROJECT_SOURCE_DIR}/cuda/cuda_memory.cpp ${PROJECT_SOURCE_DIR}/cuda/current_gpu.cpp
            ${PROJECT_SOURCE_DIR}/cuda/issue_history.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_calls.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_comms.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_memory.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_messages.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_watchdog.cpp ${PROJECT_SOURCE_DIR}/cuda/store_courier.cpp
            ${PROJECT_SOURCE_DIR}/cuda/stream_probe.cpp
    LIBRARIES zerorun_comm ${TORCH_DIR}/lib/libc10_cuda.so)
  target_link_options(nccl_requests_test PRIVATE -rdynamic)
  target_include_directories(nccl_requests_test SYSTEM PRIVATE ${ZERORUN_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})

  # Ranks as threads on GPUs of the fake CUDA, with an NCCL that moves values.
  zerorun_test(nccl_groups_test TORCH LABELS unit ranks
    SOURCES nccl_groups_test.cpp fake_cuda.cpp fake_device.cpp moving_nccl.cpp ${PROJECT_SOURCE_DIR}/cuda/cuda_check.cpp
            ${PROJECT_SOURCE_DIR}/cuda/cuda_memory.cpp ${PROJECT_SOURCE_DIR}/cuda/cuda_streams.cpp
            ${PROJECT_SOURCE_DIR}/cuda/current_gpu.cpp ${PROJECT_SOURCE_DIR}/cuda/issue_history.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_calls.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_communicator.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_comms.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_environment.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_library.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_memory.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_messages.cpp ${PROJECT_SOURCE_DIR}/cuda/nccl_registration.cpp
            ${PROJECT_SOURCE_DIR}/cuda/nccl_watchdog.cpp ${PROJECT_SOURCE_DIR}/cuda/peers.cpp
            ${PROJECT_SOURCE_DIR}/cuda/store_courier.cpp ${PROJECT_SOURCE_DIR}/cuda/stream_probe.cpp
            ${PROJECT_SOURCE_DIR}/cuda/stream_timer.cpp
    LIBRARIES zerorun_test_support ${TORCH_DIR}/lib/libc10_cuda.so)
  target_link_options(nccl_groups_test PRIVATE -rdynamic)
  target_include_directories(nccl_groups_test SYSTEM PRIVATE ${ZERORUN_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})

  # The ranks of this test are processes that load libzerorun_cuda.so at run time, as programs do.
  add_executable(nccl_communicator_test nccl_communicator_test.cpp)
  target_link_libraries(nccl_communicator_test PRIVATE zerorun_rank_processes)
  target_precompile_headers(nccl_communicator_test REUSE_FROM zerorun_test_headers)
  add_dependencies(nccl_communicator_test zerorun_cuda)
  add_test(NAME nccl_communicator_test COMMAND nccl_communicator_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(nccl_communicator_test PROPERTIES
    LABELS "gpu;ranks" TIMEOUT 900 SKIP_RETURN_CODE 77
    ENVIRONMENT ZERORUN_CUDA_LIBRARY=$<TARGET_FILE:zerorun_cuda>)

  # So are those of this test.
  add_executable(two_gpus_test two_gpus_test.cpp)
  target_link_libraries(two_gpus_test PRIVATE zerorun_engine zerorun_rank_processes)
  target_precompile_headers(two_gpus_test REUSE_FROM zerorun_test_headers)
  add_dependencies(two_gpus_test zerorun_cuda)
  add_test(NAME two_gpus_test COMMAND two_gpus_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(two_gpus_test PROPERTIES
    LABELS "gpu;ranks" TIMEOUT 900 ENVIRONMENT ZERORUN_CUDA_LIBRARY=$<TARGET_FILE:zerorun_cuda>)

  zerorun_gpu_test(nccl_comms_test SOURCES nccl_comms_test.cpp)
endif()
