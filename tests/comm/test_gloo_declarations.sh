#!/usr/bin/env bash
# test_gloo_declarations.sh LIBRARY: LIBRARY (libzerorun_comm.a) takes nothing but names from comm/gloo/gloo_declarations.
#
# LibTorch's header uses Gloo's classes behind pointers. So whatever a version of LibTorch has in these classes, ours fit, as long
# as no code of ours creates, calls or derives from one. Such code would appear as a symbol of the class, or of GlooStore, which
# LibTorch's header derives from one.
set -euo pipefail
library=$1
symbols=$(nm -C "$library" 2>/dev/null | cut -c 18-)
grep -q '^U c10d::ProcessGroupGloo::ProcessGroupGloo(' <<<"$symbols" || {
  echo "FAILED: $library does not use Gloo, so this test shows nothing"
  exit 1
}
if found=$(grep -E '^[A-Za-z] (vtable for |typeinfo (name )?for |[a-z-]+ thunk to )?(gloo::|c10d::ProcessGroupGloo::GlooStore)' <<<"$symbols"); then
  printf 'FAILED: these depend on what a class of Gloo looks like, of which comm/gloo/gloo_declarations declares a part:\n%s\n' "$found"
  exit 1
fi
echo "nothing of Gloo's classes is in $library"
