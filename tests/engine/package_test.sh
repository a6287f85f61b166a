#!/usr/bin/env bash
# Installs the engine, builds its example against what was installed, and runs it: package_test.sh BUILD_FOLDER WORK_FOLDER MODEL
set -euo pipefail
build=$1 work=$2 model=$3
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
rm -rf "$work"
mkdir -p "$work"
for component in client engine; do
  cmake --install "$build" --component "$component" --prefix "$work/prefix" >>"$work/install.log"
done
# A copy: nothing may come from the tree.
cp -r "$source/engine/example" "$work/example"
cmake -S "$work/example" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release \
  >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build"
answers=$("$work/build/answer" "$model" "The code of nerita is 271828. What is the code of nerita?" \
  "The code of mofar is 314159. What is the code of mofar?")
echo "$answers"
[[ $(grep -x "The code of .* is [0-9]*\." <<<"$answers") == $'The code of nerita is 271828.\nThe code of mofar is 314159.' ]]
if "$work/build/answer" /no/such/model "Who?" 2>"$work/nothing.err"; then exit 1; fi
grep -q "/no/such/model" "$work/nothing.err"
