# Sourced by the scripts beside it: the checkout's folder, messages, and the installation of wheels.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# say TEXT: prints a progress line, one per step of a script.
say() { printf '== %s\n' "$*"; }

# fail TEXT: prints an error in one line, which includes the remedy, and exits with 1.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# fail_with_pips_reason WHAT LOG: fails because pip could not install WHAT, with the reason from pip's output
# in LOG.
fail_with_pips_reason() {
  if grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|Connection (reset|broken|aborted)|ProxyError' "$2"; then
    fail "no network: pip cannot reach its package index; connect this machine or set pip's proxy or index," \
      "then run this again (details: $2)"
  fi
  fail "pip cannot install $1: $(grep '^ *ERROR' "$2" | head -n 1 | sed 's/^ *ERROR: //') (details: $2)"
}

# install_wheels NAME: installs scripts/NAME-requirements.txt into .deps/NAME, unless that is done already.
# Installs into another folder and renames it at the end, so .deps/NAME is never incomplete.
install_wheels() {
  local requirements=$root/scripts/$1-requirements.txt target=$root/.deps/$1 partial=$root/.deps/partial-$1
  local log=$root/.deps/$1.log stamp
  mkdir -p "$root/.deps"
  exec 9>>"$root/.deps/lock"
  flock 9
  stamp="requirements $(sha256sum <"$requirements")"
  if [[ ! -f $target/.complete || $(<"$target/.complete") != "$stamp" ]]; then
    say "installing $1 into .deps/$1"
    rm -rf "$partial"
    /usr/bin/python3 -m pip install --no-deps --require-hashes --no-cache-dir --no-input \
      --disable-pip-version-check --progress-bar off --only-binary=:all: --target "$partial" \
      --requirement "$requirements" >"$log" 2>&1 </dev/null || fail_with_pips_reason "$1" "$log"
    printf '%s\n' "$stamp" >"$partial/.complete"
    rm -rf "$target"
    mv "$partial" "$target"
  fi
  exec 9>&-
}
