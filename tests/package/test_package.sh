#!/usr/bin/env bash
# test_package.sh SOURCE BUILD: packs the build for Debian, unpacks the package into a folder, and looks at what a user would
# get: the command runs, a program finds the CMake package, the package names what it needs and that it has no licence yet.
set -euo pipefail
source=$1 build=$2
if ! command -v dpkg-shlibdeps >/dev/null; then
  echo "dpkg-shlibdeps is missing: scripts/setup --package installs it"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'echo "failed: line $LINENO: $BASH_COMMAND"' ERR

cpack --config "$build/CPackConfig.cmake" -B "$folder/packed" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
package=$(echo "$folder"/packed/zerorun_*.deb)
version=$(sed -n 's/^project(zerorun VERSION \([0-9.]*\) .*/\1/p' "$source/CMakeLists.txt")
[[ $(dpkg-deb --field "$package" Package Version) == "Package: zerorun
Version: $version" ]]
depends=$(dpkg-deb --field "$package" Depends)
echo "Depends: $depends"
for library in libc6 libstdc++6 libspdlog-dev liburing-dev; do
  grep -qE "(^|, )${library//+/[+]}( |,|$)" <<<"$depends"
done

dpkg-deb --extract "$package" "$folder/root"
[[ $("$folder/root/usr/bin/zerorun" --version) == "zerorun $version" ]]
[[ -x $folder/root/usr/bin/zerorun_probe ]]
[[ -x $folder/root/usr/bin/zerorun_plan ]]
grep -q "has no licence yet" "$folder/root/usr/share/doc/zerorun/copyright"
[[ -f $folder/root/usr/share/doc/zerorun/CHANGELOG.md ]]
if [[ -e $build/lib/libzerorun_cuda.so ]]; then
  name=$(readelf -d "$folder/root/usr/lib/libzerorun_cuda.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
  [[ $name == "libzerorun_cuda.so.${version%.*}" && -f $folder/root/usr/lib/$name ]]
  grep -qF "$name" "$folder/root/usr/bin/zerorun_probe" # the name by which programs load it
fi

# The CMake package needs no other folder of this build. That programs compile with it is shown by install_test.
mkdir "$folder/project"
cp "$source/tests/install/project/CMakeLists.txt" "$source/samples/first/main.cpp" "$folder/project"
torch=$(sed -n 's/^TORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
cmake -S "$folder/project" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/root/usr" -DTORCH_DIR="$torch" \
  >"$folder/configure.log" || { cat "$folder/configure.log"; exit 1; }
grep -qF "$folder/root/usr/include" "$folder/build/build.ninja"
! grep -qF "$build" "$folder/build/build.ninja"
