#include "base/heap.h"

#include <malloc.h>

namespace zerorun {

void return_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace zerorun
