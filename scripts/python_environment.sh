# Sourced by scripts/wheel and scripts/test_python after common.sh: the Python that a wheel is for, and the virtual environment
# in which the package is tested.
# shellcheck shell=bash disable=SC2034

# examine_python [PYTHON]: sets python to the interpreter PYTHON (Debian's, if none is given), tag to its name in wheels, such as
# cp312, and venv to the folder of its environment.
examine_python() {
  local found recent headers
  found=$("${1:-/usr/bin/python3}" - 2>&1 <<'PROGRAM'
import os, sys, sysconfig
recent = "yes" if sys.version_info >= (3, 10) else "no"
headers = "yes" if os.path.isfile(os.path.join(sysconfig.get_config_var("INCLUDEPY"), "Python.h")) else "no"
print("cp%d%d" % sys.version_info[:2], recent, headers, sys.executable)
PROGRAM
  ) || fail "$1 does not run: ${found##*$'\n'}"
  read -r tag recent headers python <<<"$found"
  [[ $recent == yes ]] || fail "$python is too old: the package needs Python 3.10 or newer"
  [[ $headers == yes ]] || fail "$python has no headers (Python.h): install them, or give a Python that has them"
  venv=$root/.deps/python${1:+-$tag}$torch_suffix${ZERORUN_USE_TRANSFORMERS:+-transformers$ZERORUN_USE_TRANSFORMERS}
}

# Prints the folder of the packages of the environment $venv.
packages_of_venv() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# install_into_venv OPTION...: runs pip install in the environment $venv.
install_into_venv() {
  TMPDIR=$venv/tmp "$venv/bin/python" -m pip install --no-deps --no-cache-dir --no-input --disable-pip-version-check \
    --progress-bar off "$@" >>"$log" 2>&1 </dev/null || fail_with_pips_reason 'the Python packages' "$log"
}

# use_transformers VERSION: lets this script and those that it calls make and use an environment with that version.
use_transformers() {
  [[ -f $root/scripts/frameworks-requirements-$1.txt ]] ||
    fail "--transformers $1: the other version that is locked is 5.24 (scripts/frameworks-requirements-5.24.txt)"
  export ZERORUN_USE_TRANSFORMERS=$1
}

# make_environment TORCH: makes the environment $venv for $python, unless it is there: torch of that minor version, the
# packages of the tests, and the frameworks, which need Python 3.11.
make_environment() {
  local stamp file requirements
  require_torch_version "$1"
  requirements=("$(torch_requirements_of "$1")" "$root/scripts/python-requirements.txt")
  [[ $tag == cp310 ]] || requirements+=("$root/scripts/frameworks-requirements.txt")
  [[ -z ${ZERORUN_USE_TRANSFORMERS:-} ]] || requirements+=("$root/scripts/frameworks-requirements-$ZERORUN_USE_TRANSFORMERS.txt")
  stamp="layout 3, $(cat "${requirements[@]}" "$root/scripts/make_stand_ins" | sha256sum)"
  [[ ! -f $venv/.complete || $(<"$venv/.complete") != "$stamp" ]] || return 0
  say "wheel: installing torch and the packages of the tests into ${venv#"$root"/} (700 MB to download)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  rm -f "$log"
  mkdir -p "$venv/tmp"
  for file in "${requirements[@]}"; do
    install_into_venv --require-hashes --only-binary=:all: --requirement "$file"
  done
  [[ -e /dev/nvidiactl ]] || "$root/scripts/make_stand_ins" "$(packages_of_venv)"
  printf '%s\n' "$stamp" >"$venv/.complete"
}
