#!/usr/bin/env bash
# test_ci.sh SOURCE: what .ci/run prints at its end, and when it fails, with scripts and a compiler that only take time.
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

oldest=2.$(sed -n 's/^#define ZERORUN_TORCH_OLDEST_MINOR //p' "$source/base/torch_version.h")
checkout=$scratch/checkout
mkdir -p "$checkout"/{.ci,.deps,base,build,scripts} "$checkout/build-torch$oldest/bin" "$scratch/bin"
cp "$source/.ci/run" "$checkout/.ci/"
cp "$source/base/torch_version.h" "$checkout/base/"
echo "$scratch/torch" >"$checkout/.deps/torch_dir"

# make_program FILE LINE...
make_program() {
  printf '%s\n' '#!/usr/bin/env bash' "${@:2}" >"$1"
  chmod +x "$1"
}
for script in scripts/{setup,check_format,check_types,check_schema,test_python,build} "build-torch$oldest/bin/deferred_init_test"; do
  make_program "$checkout/$script" 'exit 0'
done
make_program "$checkout/scripts/build" 'sleep 7'
# Waits, and then computes for 1.6 s of the processor.
make_program "$scratch/bin/c++" 'cat >/dev/null; echo "a warning" >&2; sleep 3' \
  'python3 -c "
import time
while time.process_time() < 1.6: pass"'
# make_tests LINE STATUS: scripts/test ends with LINE and other lines, as ctest does.
make_tests() {
  make_program "$checkout/scripts/test" "printf '%s\n' '1/2 Test: passed' '$1' '' 'Total Test time (real) =   0.02 sec'" "exit $2"
}

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/text")"
  exit 1
}
run() {
  status=0
  PATH=$scratch/bin:$PATH "$checkout/.ci/run" >"$scratch/text" 2>"$scratch/errors" || status=$?
}
# ends_with LINE PATTERN: the last line is LINE, the one before matches PATTERN.
ends_with() {
  [[ $(tail -n 1 "$scratch/text") == "$1" ]] || fail "the last line is not: $1"
  tail -n 2 "$scratch/text" | head -n 1 | grep -qE "$2" || fail "the line before the last is not: $2"
}
some='0\.[0-9]' more='0\.[1-9]'
minutes="^== ci: minutes: set-up $some, checks $some, torch/torch\.h $some, wheel and Python tests $some, build $more,"
minutes+=" oldest LibTorch $more, tests $some, all $more; torch/torch\.h takes 2 CPU seconds here\$"

make_tests '100% tests passed, 0 tests failed out of 2' 0
run
((status == 0)) || fail "exit code $status"
ends_with '100% tests passed, 0 tests failed out of 2' "$minutes"
grep -q 'a warning' "$scratch/errors" || fail "the compiler's messages are lost"

make_tests '50% tests passed, 1 tests failed out of 2' 8
make_program "$checkout/scripts/build" 'exit 0'
make_program "$scratch/bin/c++" 'cat >/dev/null'
run
((status == 8)) || fail "exit code $status after a failed test"
ends_with '50% tests passed, 1 tests failed out of 2' '^== ci: minutes: .*, tests 0\.[0-9], all '

# Tests that were not counted are a failure.
make_tests 'no tests' 0
run
((status != 0)) || fail "exit code 0 without tests"

# A part that fails ends the run, also one in the middle of a part.
make_program "$checkout/scripts/check_format" 'echo not formatted; exit 1'
run
((status == 1)) || fail "exit code $status after a failed check"
[[ $(tail -n 1 "$scratch/text") == 'not formatted' ]] || fail "goes on after a failed check"
make_program "$checkout/scripts/check_format" 'exit 0'
make_program "$scratch/bin/c++" 'exit 3'
run
((status == 3)) || fail "exit code $status after a failed compilation"
echo "CI prints the minutes of its parts, and the count of tests last"
