# Sourced by the scripts beside it: where the checkout is, and how a script speaks.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# One progress line per step.
say() { printf '== %s\n' "$*"; }

# A failure is one line that says what to do.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
