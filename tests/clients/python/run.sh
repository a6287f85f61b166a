#!/usr/bin/env bash
# Installs the Python client as users do, checks its types, and runs its tests and its example: run.sh
# Exits with 77, which ctest shows as skipped, where there is no Python with gRPC.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../../.." && pwd)
python=
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import grpc, google.protobuf, setuptools, pip' 2>/dev/null; then python=$candidate && break; fi
done
[[ -n $python ]] || { echo "no Python with grpcio, protobuf, pip and setuptools: skipped"; exit 77; }

# Of a copy, because a build writes into its folder.
rm -rf "$WORK/source" "$WORK/site"
mkdir -p "$WORK/source/clients"
cp -r "$source/proto" "$WORK/source/"
cp -r "$source/clients/python" "$WORK/source/clients/"
"$python" -m pip install --quiet --no-deps --no-build-isolation --no-index --target "$WORK/site" "$WORK/source/clients/python" \
  2>"$WORK/pip.log" || { cat "$WORK/pip.log"; exit 1; }
export PYTHONPATH=$WORK/site

if "$python" -m mypy --version >/dev/null 2>&1; then
  for what in "-p winnow" "$source/clients/python/examples/ask.py"; do
    # shellcheck disable=SC2086
    (cd "$WORK" && MYPYPATH=$WORK/site "$python" -m mypy --config-file="$source/clients/python/pyproject.toml" --cache-dir="$WORK/mypy" $what)
  done
fi
"$python" "$here/client_test.py"

echo "The code of nerita is 271828. The code of mofar is 314159." >"$WORK/codes.txt"
answer=$("$python" "$source/clients/python/examples/ask.py" "$WINNOW_GRPC" "$WORK/codes.txt" "What is the code of nerita?")
echo "$answer"
grep -qx "The code of nerita is 271828." <<<"$answer"
if "$python" "$source/clients/python/examples/ask.py" 127.0.0.1:1 "$WORK/codes.txt" "Who?" 2>"$WORK/nobody.err"; then exit 1; fi
grep -q "connect" "$WORK/nobody.err"
