# Sourced by scripts/test and scripts/test_python after common.sh: the table of docs/versions.md.
# shellcheck shell=bash

# record_run TORCH PYTHON WHAT JUNIT SECONDS STATUS: writes the row of this run into docs/versions.md, in place of an earlier one of the
# same versions and tests on the same distribution. WHAT: the program, with all options that change what is tested. JUNIT: what ctest
# or pytest has written of the tests at its end; remove an earlier one before. STATUS: its exit code. A run that did not come
# to its end has no row.
record_run() {
  local table=$root/docs/versions.md system key row
  if ! is_whole_run "$6" "$4"; then
    say "not recorded in docs/versions.md: the run did not come to its end (exit code $6)"
    return
  fi
  # shellcheck disable=SC1091
  system=$(source /etc/os-release && echo "${NAME%% *} $VERSION_ID")
  key="| $1 | $2 | $system | ${3//|/\\|} |"
  row="$key $(passed_of_run "$4") | $((($5 + 59) / 60)) | $(commit_of_run) | $(date -u +%F) |"
  grep -vF "$key" "$table" >"$table.new"
  printf '%s\n' "$row" >>"$table.new"
  mv "$table.new" "$table"
  say "recorded in docs/versions.md: $row"
}

# is_whole_run STATUS JUNIT: whether all tests have run. They have if all have passed (0) or some have failed (pytest's 1, ctest's 8).
# Anything else is an interruption (pytest's 2, or a signal), a mistake in the options, or no test at all.
is_whole_run() { [[ $1 =~ ^(0|1|8)$ && -s $2 ]]; }

# Prints the commit, and -dirty if something else than the table has changed since.
commit_of_run() {
  local commit
  commit=$(git -C "$root" describe --always 2>/dev/null) || commit=unknown
  git -C "$root" diff --quiet HEAD -- . ':!docs/versions.md' 2>/dev/null || commit+=-dirty
  echo "$commit"
}

# Prints the tests that have passed and those that have run, such as 118 of 120, of the JUnit file $1. Skipped tests have not run.
passed_of_run() {
  python3 - "$1" <<'PROGRAM'
import sys
import xml.etree.ElementTree

suite = next(xml.etree.ElementTree.parse(sys.argv[1]).iter("testsuite"))
tests, skipped, disabled, failures, errors = (
    int(suite.get(name, 0)) for name in ("tests", "skipped", "disabled", "failures", "errors"))
run = tests - skipped - disabled
print(run - failures - errors, "of", run)
PROGRAM
}
