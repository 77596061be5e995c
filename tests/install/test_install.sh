#!/usr/bin/env bash
# test_install.sh SOURCE BUILD: installs the build, compiles the README's program and one that uses all public names outside of
# the source tree against the installation, runs both, the first one on two ranks and with another LibTorch, which it must refuse,
# and runs the installed zerorun doctor.
set -euo pipefail
source=$1 build=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Prints the names that these headers declare in the namespace zerorun: those that include/zerorun/*.h include, and those with the
# types of arguments and results. Relies on the layout of .clang-format: a declaration in a namespace begins in the first column.
public_names() {
  local headers
  mapfile -t headers < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$source"/include/zerorun/*.h)
  headers+=(base/dtype.h base/mesh_sizes.h comm/meeting/environment.h comm/mesh.h config/config_types.h engine/model.h engine/options.h optim/schedule.h plan/report.h plan/request.h
    zero/residency_report.h)
  (cd "$source" && sed -nE '
    /^(template|return|#|\/\/| )/d
    s/^(struct|class|enum class) (\w+)[^;]*(\{.*)?$/\2/p; t
    s/^enum class (\w+) \{.*$/\1/p; t
    s/^using (\w+) =.*/\1/p; t
    s/^inline constexpr .*\b(\w+) =.*/\1/p; t
    s/^[A-Za-z\[][^(=]*[ &*](\w+)\(.*/\1/p' "${headers[@]}" | sort -u)
}
names=$(public_names)
(($(wc -l <<<"$names") > 80)) || { echo "test_install.sh finds too few public names: $names"; exit 1; }
for name in $names; do
  grep -qE "zerorun::$name\b" "$source/tests/install/project/names.cpp" ||
    { echo "zerorun::$name is public, and tests/install/project/names.cpp does not use it"; exit 1; }
done

cmake --install "$build" --prefix "$folder/installed" >"$folder/install.log"
mkdir "$folder/project"
cp "$source/tests/install/project/CMakeLists.txt" "$source/samples/first/ds_config.json" "$folder/project"
cp "$source/samples/first/main.cpp" "$source/tests/install/project/names.cpp" "$folder/project"
cat >>"$folder/project/CMakeLists.txt" <<'END'
add_executable(names names.cpp)
target_link_libraries(names PRIVATE ZeroRun::zerorun)
END
cmake -S "$folder/project" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/installed" >"$folder/configure.log"
cmake --build "$folder/build" | tail -n 5
cd "$folder/project"
printed=$("$folder/build/names" || [[ $? == 1 ]])
grep -x "every public name works" <<<"$printed"
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
