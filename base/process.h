// Protects resources outside a process (shared memory, sockets) from its forked children. A child has copies
// of its parent's objects and destroys the copies when it ends. That must not destroy the parent's resources.
// Any thread.
#pragma once

#include <memory>
#include <utility>

namespace zerorun {

/// The number of forks between the first process and this one.
int fork_generation();

/// The process in which an object was made.
class HomeProcess {
 public:
  bool is_current() const { return fork_generation() == generation_; }

 private:
  int generation_ = fork_generation();
};

/// Keeps `object` until the process ends and never destroys it.
void keep_forever(std::shared_ptr<void> object);

/// `object` with a deleter that destroys it only in this process; a forked child never destroys its copy.
template <typename T>
std::shared_ptr<T> kept_by_forks(std::shared_ptr<T> object) {
  T* address = object.get();
  return {address, [object = std::move(object), home = HomeProcess()](T*) mutable {
            if (!home.is_current()) keep_forever(std::move(object));
            object.reset();
          }};
}

}  // namespace zerorun
