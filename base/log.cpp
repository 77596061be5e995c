#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace zerorun {
namespace {

spdlog::logger& logger() {
  static auto instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("zerorun", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%n: %^%l%$: %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

}  // namespace

void log_info(const std::string& message) {
  logger().info("{}", message);
}

void log_warning(const std::string& message) {
  logger().warn("{}", message);
}

}  // namespace zerorun
