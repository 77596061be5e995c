#!/usr/bin/env bash
# test_install.sh SOURCE BUILD: installs the build, compiles the README's program outside of the source tree
# against the installation, trains with that program on two ranks, and runs the installed zerorun doctor.
set -euo pipefail
source=$1 build=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/installed" >"$folder/install.log"
mkdir "$folder/project"
cp "$source/tests/install/project/CMakeLists.txt" "$source/samples/first/ds_config.json" "$folder/project"
cp "$source/samples/first/main.cpp" "$folder/project"
cmake -S "$folder/project" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/installed" >"$folder/configure.log"
cmake --build "$folder/build" | tail -n 5
cd "$folder/project"
printed=$("$folder/installed/bin/zerorun" --num_gpus 2 "$folder/build/train")
echo "$printed"
grep -q "step 100: loss" <<<"$printed"
diagnosis=$("$folder/installed/bin/zerorun" doctor || [[ $? == 1 ]])
echo "$diagnosis"
grep -q "over shared memory, the sums are right" <<<"$diagnosis"
