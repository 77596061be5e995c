#!/usr/bin/env bash
# test_docs.sh SOURCE BUILD: checks README.md and docs/guide.md. Every block of C++, JSON or CMake must be
# part of a file that is built or tested. Every command, and every section of the guide's program, must run.
# BUILD needs the targets guide, gpt2, train_tokenizer, zerorun_probe and zerorun. Every link to a file must lead to a file that exists. CONTRIBUTING.md's table must have every environment variable.
set -euo pipefail
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$build/bin:$PATH ZERORUN_DEVICE=cpu
passed=0

fail() {
  echo "$1" >&2
  exit 1
}

# split PAGE FOLDER: writes each block of the page to a file FOLDER/NUMBER.LANGUAGE.
split() {
  awk -v folder="$2" '
    /^```/ { if (inside) { inside = 0 } else { inside = 1; file = folder "/" (++count) "." substr($0, 4) }; next }
    inside { print > file }' "$1"
}

# plain [FILE...]: prints the files without indentation and empty lines.
plain() {
  sed -e 's/^[[:space:]]*//' -e '/^$/d' "$@"
}

# is_part BLOCK FILE...: succeeds if a file contains the block word for word.
is_part() {
  local file block
  block=$(plain "$1")
  for file in "${@:2}"; do
    [[ $(plain "$file") == *"$block"* ]] && return
  done
  return 1
}

words=$(wc -w <"$source/README.md")
((words <= 700)) || fail "README.md has $words words, and is to have 700 at most"

mkdir "$work/run"
cp "$source"/samples/guide/*.json "$work/run"
cp "$source/samples/gpt2/ds_config.json" "$work/run/ds_config.json"
cp "$source/samples/guide/stage3.json" "$work/run/other.json"
cp "$source/README.md" "$work/run/text.txt"
for page in README.md docs/guide.md; do
  blocks=$work/${page//\//_}
  mkdir "$blocks"
  split "$source/$page" "$blocks"
  for block in "$blocks"/*; do
    case $block in
      *.cpp) is_part "$block" "$source"/samples/{first,guide}/main.cpp || fail "$page: no program has this: $(<"$block")" ;;
      *.json) is_part "$block" "$source"/samples/guide/*.json || fail "$page: no file has this: $(<"$block")" ;;
      *.cmake)
        sed -i 's/ *#.*//' "$block"
        is_part "$block" "$source/tests/install/project/CMakeLists.txt" || fail "$page: test_install has no such project: $(<"$block")"
        ;;
      *.sh)
        while read -r command; do
          # Scripts only get a syntax check: one of them runs this test, another is a demo of three minutes.
          [[ $command == scripts/* ]] && command="bash -n $source/${command%%  *}"
          (cd "$work/run" && bash -euc "$command" >"$work/output" 2>&1 </dev/null) ||
            { code=$?; [[ $command == *"config diff"* && $code == 1 ]]; } || fail "$page: $command: $(<"$work/output")"
        done <"$block"
        ;;
      *) fail "$page: a block in no language that is known here: $block" ;;
    esac
    passed=$((passed + 1))
  done
done

for section in $(grep -oP '^void \K\w+(?=\(\) \{$)' "$source/samples/guide/main.cpp"); do
  (cd "$work/run" && zerorun --num_gpus 2 guide "$section") >"$work/output" 2>&1 ||
    fail "the guide's $section: $(<"$work/output")"
  passed=$((passed + 1))
done

for page in "$source"/{README,CONTRIBUTING,CHANGELOG}.md "$source"/docs/*.md; do
  for link in $(awk '/^```/ { inside = !inside } !inside' "$page" | grep -oP '\]\(\K[^)# ]+' | grep -v '^https\?:' || true); do
    [[ -e $(dirname "$page")/$link ]] || fail "$page: no file $link"
    passed=$((passed + 1))
  done
done
# Variables that scripts expand, and those that are a whole string in C++ and Python; CMake's own are not among these.
cd "$source"
folders=(.ci base benchmarks comm cuda doctor engine launcher python samples scripts tests)
used=$(grep -rhoP '"\KZERORUN_[A-Z_]+(?=[="])|\$\{?\KZERORUN_[A-Z_]+' --exclude=CMakeLists.txt --exclude='*.cmake' "${folders[@]}" |
  grep -v '^ZERORUN_TORCH_' | sort -u)
(($(wc -w <<<"$used") > 20)) || fail "too few environment variables are found in the sources: $used"
for variable in $used; do
  grep -q "^|.*\`$variable\`.*|" CONTRIBUTING.md || fail "CONTRIBUTING.md: its table lacks $variable"
  passed=$((passed + 1))
done
for variable in $(grep -oP '^\|.*\|' CONTRIBUTING.md | grep -oP '`\KZERORUN_[A-Z_]+(?=`)' | sort -u); do
  grep -rqw "$variable" "${folders[@]}" || fail "CONTRIBUTING.md: nothing reads $variable"
  passed=$((passed + 1))
done
echo "$passed blocks, sections and links are as they should be"
