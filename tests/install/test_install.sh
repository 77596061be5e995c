#!/usr/bin/env bash
# test_install.sh SOURCE BUILD: installs the build, compiles the README's program outside of the source tree
# against the installation, trains with that program on two ranks, starts it with another LibTorch, which it must refuse, and runs the
# installed zerorun doctor.
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
# With a LibTorch of another version, of which this fake has the one function that says so, the program ends before main().
echo 'unsigned long aoti_torch_abi_version() { return 2ul << 56 | 99ul << 48; }' | cc -shared -fPIC -x c - -o "$folder/other_torch.so"
if LD_PRELOAD=$folder/other_torch.so "$folder/build/train" 2>"$folder/refusal"; then echo "runs with another LibTorch"; exit 1; fi
grep "error: this program was built for LibTorch 2\.[0-9]*, and has loaded LibTorch 2\.99: " "$folder/refusal"
printed=$("$folder/installed/bin/zerorun" --num_gpus 2 "$folder/build/train")
echo "$printed"
grep -q "step 100: loss" <<<"$printed"
diagnosis=$("$folder/installed/bin/zerorun" doctor || [[ $? == 1 ]])
echo "$diagnosis"
grep -q "over shared memory, the sums are right" <<<"$diagnosis"
