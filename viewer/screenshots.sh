#!/usr/bin/env bash
# Makes the pictures of the viewer in docs/img from a real run. Needs no window, display or GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
scenario=${1:-scenarios/qwen3-14b-h100-vllm.toml}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p docs/img
cargo run --locked -- --quiet run "$scenario" --record "$work/run.servetwin" > "$work/report"
cargo run --locked -p viewer --no-default-features --example pictures -- "$work/run.servetwin" docs/img
