#!/usr/bin/env bash
# Builds the viewer as a page: static files in the folder DIR (default: target/servetwin-web), to be put on any web server.
#
#     viewer/web/build.sh [--program] [DIR]
#
# With --program it then builds servetwin and servetwin-viewer with the page in it, for `servetwin view --web`.
#
# Needs wasm-bindgen of the version that Cargo.lock names (the script says which). The file is not put through wasm-opt: it would be 7 %
# smaller, and version 108 (Debian 12) writes one that does not start ("WebAssembly.Table.set(): Argument 1 is invalid").
set -euo pipefail
cd "$(dirname "$0")/../.."
program=
if [ "${1:-}" = --program ]; then
    program=yes
    shift
fi
out=${1:-target/servetwin-web}

wanted=$(grep -A1 '^name = "wasm-bindgen"$' Cargo.lock | sed -n 's/^version = "\(.*\)"$/\1/p')
if [ "$(wasm-bindgen --version 2> /dev/null || true)" != "wasm-bindgen $wanted" ]; then
    echo "error: wasm-bindgen $wanted is not on PATH: cargo install wasm-bindgen-cli --version $wanted" >&2
    exit 1
fi

rustup target add wasm32-unknown-unknown
# What it takes to be small: the page is downloaded before anything is seen.
CARGO_PROFILE_RELEASE_OPT_LEVEL=${OPT_LEVEL:-2} CARGO_PROFILE_RELEASE_PANIC=abort CARGO_PROFILE_RELEASE_STRIP=debuginfo \
    cargo build --release --locked -p viewer --bin servetwin-viewer --target wasm32-unknown-unknown
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$out"
wasm-bindgen --target web --no-typescript --out-name viewer --out-dir "$out" \
    "$target/wasm32-unknown-unknown/release/servetwin-viewer.wasm"
cp viewer/web/index.html viewer/web/worker.js "$out/"
# Servers that can send compressed files find them; the others do not need them. The program takes these in.
for file in index.html worker.js viewer.js viewer_bg.wasm; do gzip -9 -k -f -n "$out/$file"; done
ls -l "$out"
if [ -n "$program" ]; then
    SERVETWIN_PAGE=$(cd "$out" && pwd) cargo build --release --locked -p servetwin -p viewer
    ls -l "$target/release/servetwin" "$target/release/servetwin-viewer"
    echo "$target/release/servetwin view --web"
else
    echo "servetwin view --web --files $out"
fi
