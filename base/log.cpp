#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/log_pause.h"

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

thread_local int pauses = 0;

}  // namespace

LogPause::LogPause() {
  ++pauses;
}

LogPause::~LogPause() {
  --pauses;
}

void log_info(const std::string& message) {
  if (pauses > 0) return;
  logger().info("{}", message);
}

void log_warning(const std::string& message) {
  if (pauses > 0) return;
  logger().warn("{}", message);
}

}  // namespace zerorun
