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

# fail_with_pips_reason WHAT LOG: pip could not install WHAT, and has written into LOG why.
fail_with_pips_reason() {
  if grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|Connection (reset|broken|aborted)|ProxyError' "$2"; then
    fail "no network: pip cannot reach its package index; connect this machine or set pip's proxy or index," \
      "then run this again (details: $2)"
  fi
  fail "pip cannot install $1: $(grep '^ *ERROR' "$2" | head -n 1 | sed 's/^ *ERROR: //') (details: $2)"
}
