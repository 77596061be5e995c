#!/usr/bin/env bash
# test_record.sh SOURCE: the rows that scripts/test and scripts/test_python write into docs/versions.md, with a ctest and a pytest
# that only write their results.
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset ZERORUN_USE_TORCH ZERORUN_USE_TRANSFORMERS ZERORUN_TEST_ALL

torch=2.$(sed -n 's/^#define ZERORUN_TORCH_NEWEST_MINOR //p' "$source/base/torch_version.h")
checkout=$scratch/checkout
build=$checkout/build-torch$torch
mkdir -p "$checkout"/{.deps/tokenizers,docs,python} "$build" "$scratch"/{bin,torch/lib,torch/include/torch/headeronly}
cp -r "$source/scripts" "$checkout/"
table=$checkout/docs/versions.md
printf '%s\n' '| LibTorch | Python |' '| --- | --- |' >"$table"
touch "$scratch/torch/lib/libtorch_cpu.so"
echo "  \"$torch.0\"" >"$scratch/torch/include/torch/headeronly/version.h"
echo "$scratch/torch" >"$checkout/.deps/torch_dir-torch$torch"
echo "requirements $(sha256sum <"$source/scripts/tokenizers-requirements.txt")" >"$checkout/.deps/tokenizers/.complete"

# make_program FILE LINE...
make_program() {
  mkdir -p "$(dirname "$1")"
  printf '%s\n' '#!/usr/bin/env bash' "${@:2}" >"$1"
  chmod +x "$1"
}
for script in setup build wheel; do make_program "$checkout/scripts/$script" 'exit 0'; done
make_program "$scratch/bin/python" 'cat >/dev/null' "echo cp311 yes yes $scratch/bin/python"
# shellcheck disable=SC2016 # for the programs
# Both programs write that $RAN tests have run, and end with $STATUS; or they end without that.
make_program "$scratch/bin/ctest" '[[ -z ${KILLED:-} ]] || kill -KILL $$' '[[ -z ${SLOW:-} ]] || sleep 60' \
  'while [[ $1 != *junit* ]]; do shift; done' \
  'echo "<testsuite tests=\"$RAN\" skipped=\"1\" failures=\"${STATUS/8/1}\"/>" >"$2"' 'exit $STATUS'
for environment in "python-cp311-torch$torch"{,-transformers5.24}; do
  make_program "$checkout/.deps/$environment/bin/python" 'echo 3.11.2'
  cp "$scratch/bin/ctest" "$checkout/.deps/$environment/bin/pytest"
done

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/text" "$table")"
  exit 1
}
# record RAN STATUS SCRIPT OPTION...: runs the script, whose tests end with STATUS after RAN tests. Sets status.
record() {
  status=0
  RAN=$1 STATUS=$2 PATH=$scratch/bin:$PATH timeout "${LIMIT:-60}" "$checkout/scripts/$3" "${@:4}" >"$scratch/text" 2>&1 || status=$?
}
pytest=(test_python --python "$scratch/bin/python" --torch "$torch")
# has WHAT PASSED: the row of WHAT says PASSED, and is there once. rows N: there are so many.
has() {
  (($(grep -cF " | $1 | " "$table") == 1)) || fail "there is not one row of '$1'"
  grep -qF " | $1 | $2 | " "$table" || fail "the row of '$1' does not say $2"
}
rows() { (($(wc -l <"$table") == $1 + 2)) || fail "there are not $1 rows"; }

# What is tested is part of the row: other tests have another one.
record 101 0 "${pytest[@]}" && has pytest '100 of 100'
record 151 0 "${pytest[@]}" --all && has 'pytest --all' '150 of 150'
record 51 1 "${pytest[@]}" --transformers 5.24 && has 'pytest --transformers 5.24' '49 of 50'
record 61 0 "${pytest[@]}" --transformers 5.24 --all && has 'pytest --all --transformers 5.24' '60 of 60'
record 3 0 "${pytest[@]}" tests/test_docs.py && has 'pytest tests/test_docs.py' '2 of 2'
record 41 0 test --torch "$torch" && has ctest '40 of 40'
record 81 8 test --torch "$torch" --all && has 'ctest --all' '79 of 80'
((status == 8)) || fail "exit code $status"
record 6 0 test --torch "$torch" -R 'a|b' && has 'ctest -R a\|b' '5 of 5'
rows 8
record 111 0 "${pytest[@]}" && has pytest '110 of 110'
record 7 0 test --torch "$torch" -R 'a|b' && has 'ctest -R a\|b' '6 of 6'
rows 8

# A run that is interrupted, or cannot begin, leaves the row of the whole one.
for code in 2 3 4 5 130; do
  record 9 "$code" "${pytest[@]}"
  ((status == code)) || fail "exit code $status"
  has pytest '110 of 110'
done
KILLED=1 record 9 0 "${pytest[@]}" && has pytest '110 of 110'
((status == 137)) || fail "exit code $status"
KILLED=1 record 9 0 test --torch "$torch" && has ctest '40 of 40'
SLOW=1 LIMIT=1 record 9 0 "${pytest[@]}" && has pytest '110 of 110'
((status == 124)) || fail "exit code $status"
rows 8
echo "each kind of run has a row, and only if it has come to its end"
