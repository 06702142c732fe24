#!/usr/bin/env bash
# Makes the pictures of the viewer in docs/img from real runs. Needs no window, display or GPU.
#
#     viewer/screenshots.sh [SCENARIO]
#
# WINDOW=1 also takes one of the program's own window under Xvfb (Debian: xvfb and what docs/viewer.md names), WEB=DIR those of the page in DIR, in
# Chromium (viewer/web/check.py says what that needs). SCREENS=DIR paints two more of 3840 x 2160 pixels into DIR. TWIN=FILE shows what a twin wrote (twin --jsonl).
set -euo pipefail
cd "$(dirname "$0")/.."
scenario=${1:-scenarios/qwen3-14b-h100-vllm.toml}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p docs/img
servetwin() { cargo run --locked --quiet -- --quiet "$@"; }
servetwin run "$scenario" --record "$work/run.servetwin" > "$work/report"
servetwin plan plans/chat.toml --json --scenario "$work/plan.toml" > "$work/plan.json"
cargo run --locked -p viewer --no-default-features --example pictures -- \
    "$work/run.servetwin" docs/img "$work/plan.toml" "$work/plan.json" ${TWIN:+"$TWIN"}
if [ -n "${WINDOW:-}" ]; then
    xvfb-run -a -s "-screen 0 1280x800x24" cargo run --locked -p viewer -- "$work/run.servetwin" --screenshot docs/img/viewer-window.png
fi
if [ -n "${WEB:-}" ]; then
    viewer/web/check.py "$WEB" docs/img
fi
for picture in docs/img/viewer-*.png; do
    [ "$(stat -c %s "$picture")" -le 300000 ] || echo "note: $picture is larger than 300 kB" >&2
done
