#include "base/process.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace zerorun {
namespace {

int generation = 0;
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });

}  // namespace

int fork_generation() {
  return generation;
}

// The list is never destroyed. Leak checkers do not report it, because `kept` still points to it.
void keep_forever(std::shared_ptr<void> object) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  std::lock_guard lock(mutex);
  kept->push_back(std::move(object));
}

}  // namespace zerorun
