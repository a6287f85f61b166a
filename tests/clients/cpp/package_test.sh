#!/usr/bin/env bash
# Installs the C++ client, builds its example against what was installed, and runs it: package_test.sh BUILD_FOLDER
set -euo pipefail
build=$1
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
rm -rf "$WORK/prefix" "$WORK/example" "$WORK/example.build"
cmake --install "$build" --component client --prefix "$WORK/prefix" >"$WORK/install.log"
# A copy: nothing may come from the tree.
cp -r "$source/clients/cpp/example" "$WORK/example"
cmake -S "$WORK/example" -B "$WORK/example.build" -DCMAKE_PREFIX_PATH="$WORK/prefix" -DCMAKE_BUILD_TYPE=Release \
  >"$WORK/configure.log" || { cat "$WORK/configure.log"; exit 1; }
cmake --build "$WORK/example.build"

echo "The code of nerita is 271828. The code of mofar is 314159." >"$WORK/codes.txt"
answer=$("$WORK/example.build/ask" "$WINNOW_GRPC" "$WORK/codes.txt" "What is the code of nerita?")
echo "$answer"
grep -qx "The code of nerita is 271828." <<<"$answer"
grep -q " tokens read, .* rows resident" <<<"$answer"

# What fails says why, and shows in the exit status.
if "$WORK/example.build/ask" 127.0.0.1:1 "$WORK/codes.txt" "Who is there?" 2>"$WORK/nobody.err"; then exit 1; fi
grep -q "there is no server at 127.0.0.1:1" "$WORK/nobody.err"
