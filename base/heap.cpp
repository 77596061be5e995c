#include "base/heap.h"

#include <malloc.h>

namespace zerorun {

void return_freed_memory() {
// A sanitizer replaces malloc() but not malloc_trim(). glibc's heap would then be initialized here, on any
// thread, which it does not expect: it aborts when such threads end.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  ::malloc_trim(0);
#endif
}

}  // namespace zerorun
