// A forked child has a copy of every object of its parent, and destroys it when it ends: whatever reaches
// beyond the process (memory that ranks share, sockets) must not go with the copy. Any thread.
#pragma once

#include <memory>
#include <utility>

namespace zerorun {

/// How often the process has been forked, counted along its line of ancestors.
int fork_generation();

/// The process in which an object was made.
class HomeProcess {
 public:
  bool is_current() const { return fork_generation() == generation_; }

 private:
  int generation_ = fork_generation();
};

/// Keeps `object` until the process ends, and does not destroy it then either.
void keep_forever(std::shared_ptr<void> object);

/// `object` with a last owner that destroys it in this process only: forked children keep their copy.
template <typename T>
std::shared_ptr<T> kept_by_forks(std::shared_ptr<T> object) {
  T* address = object.get();
  return {address, [object = std::move(object), home = HomeProcess()](T*) mutable {
            if (!home.is_current()) keep_forever(std::move(object));
            object.reset();
          }};
}

}  // namespace zerorun
