#!/usr/bin/env bash
# Packs and installs the Node client as users do, checks its types, and runs its tests and its example: run.sh
# Exits with 77, which ctest shows as skipped, where node or the packages are not to be had.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../../.." && pwd)
command -v npm >/dev/null && command -v node >/dev/null || { echo "no node, no npm: skipped"; exit 77; }

# Its dependencies, in the versions of the lock file.
mkdir -p "$WORK/dependencies"
cd "$WORK/dependencies"
if ! cmp -s "$source/clients/node/package-lock.json" node_modules/.installed; then
  cp "$source"/clients/node/package{,-lock}.json .
  timeout 150 npm ci --no-audit --no-fund --ignore-scripts --loglevel=error ||
    { echo "npm cannot install the packages: skipped"; exit 77; }
  cp package-lock.json node_modules/.installed
fi

# The package, made of a copy of the tree because that writes into its folder, and unpacked beside them.
rm -rf "$WORK/source" "$WORK/user"
mkdir -p "$WORK/source/clients" "$WORK/user"
cp -r "$source/proto" "$WORK/source/"
cp -r "$source/clients/node" "$WORK/source/clients/"
cd "$WORK/source/clients/node"
npm pack --loglevel=error --pack-destination "$WORK/user" >/dev/null
cd "$WORK/user"
cp -r "$WORK/dependencies/node_modules" .
mkdir node_modules/winnow-client
tar -xzf winnow-client-*.tgz --strip-components=1 -C node_modules/winnow-client
cp "$here"/client.test.mjs "$here"/types.ts "$source"/clients/node/examples/ask.mjs .

node node_modules/typescript/bin/tsc --noEmit --strict --skipLibCheck --target es2022 --module nodenext types.ts
node --test client.test.mjs

echo "The code of nerita is 271828. The code of mofar is 314159." >codes.txt
answer=$(node ask.mjs "$WINNOW_GRPC" codes.txt "What is the code of nerita?")
echo "$answer"
grep -qx "The code of nerita is 271828." <<<"$answer"
if node ask.mjs 127.0.0.1:1 codes.txt "Who?" 2>nobody.err; then exit 1; fi
grep -qi "connect" nobody.err
