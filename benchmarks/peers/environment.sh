# Functions for the scripts in this folder, which source this file after scripts/common.sh: they make a Python
# environment with the runtimes that ZeroRun is compared with (the peers).
# shellcheck shell=bash

# enter_peers FOLDER: makes the peers' environment the current one. The first call installs the peers into a
# virtual environment in FOLDER (7 GB, some minutes). That needs python3 with venv and its headers (Debian:
# python3-venv, python3-dev), g++, and pip's package index.
enter_peers() {
  local folder=$1 requirements=$root/benchmarks/peers/requirements.txt stamp log
  stamp=$(sha256sum <"$requirements")
  log=$folder/install.log
  if [[ ! -f $folder/.complete || $(<"$folder/.complete") != "$stamp" ]]; then
    say "peers: installing $(grep -v '^#' "$requirements" | tr '\n' ' ')into $folder"
    rm -rf "$folder"
    mkdir -p "$folder"
    python3 -m venv "$folder/environment" >"$log" 2>&1 ||
      fail "python3 makes no virtual environment: install python3-venv (details: $log)"
    "$folder/environment/bin/pip" install --no-input --disable-pip-version-check --progress-bar off \
      --requirement "$requirements" >>"$log" 2>&1 </dev/null || fail_with_pips_reason "the peers" "$log"
    printf '%s\n' "$stamp" >"$folder/.complete"
  fi
  folder=$(cd "$folder" && pwd)
  export PATH=$folder/environment/bin:$PATH TORCH_EXTENSIONS_DIR=$folder/extensions DS_ACCELERATOR=cpu
}

# require_program NAME...: fails if one of these programs is not in build/bin.
require_program() {
  local name
  for name in "$@"; do
    [[ -x $root/build/bin/$name ]] || fail "there is no build/bin/$name: run scripts/build release $*"
  done
}

# install_zerorun: installs the newest wheel of scripts/wheel for the current environment's Python and torch into it.
install_zerorun() {
  local tag torch wheel log=$root/.deps/peers_wheel.log
  tag=$(python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  torch=$(pip list --format freeze 2>"$log" | sed -n 's/^torch==\([0-9]*\.[0-9]*\).*/\1/p')
  wheel=("$root"/dist/zerorun-*"+torch$torch-$tag"-*.whl)
  [[ -f ${wheel[0]} ]] || fail "there is no wheel for ${tag} and torch $torch in dist/: run" \
    "scripts/wheel --python $(command -v python) --torch $torch"
  pip install --no-deps --force-reinstall --no-input --disable-pip-version-check --progress-bar off "${wheel[0]}" \
    >"$log" 2>&1 </dev/null || fail_with_pips_reason 'the wheel' "$log"
}

# install_frameworks FOLDER: installs transformers and the other frameworks that the Python tests use into the peers' environment.
install_frameworks() {
  local requirements log=$1/frameworks.log
  for requirements in python-requirements.txt frameworks-requirements.txt; do
    pip install --no-deps --require-hashes --no-input --disable-pip-version-check --progress-bar off \
      --requirement "$root/scripts/$requirements" >"$log" 2>&1 </dev/null || fail_with_pips_reason 'the frameworks' "$log"
  done
}
