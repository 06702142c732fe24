#!/bin/bash
# One stage of a measurement on a machine that is lent for short calls: at most ten minutes each, files come back as one archive.
#
#   bash calibrate/gpu/session.sh 1 out.tgz              ceilings, operators, first steps          (about 570 s)
#   bash calibrate/gpu/session.sh 2 out.tgz ./servetwin  the rest of the steps, the paged engine   (about 570 s)
#   bash calibrate/gpu/session.sh 3 out.tgz ./servetwin  transformers, the denser operator grids   (about 570 s)
#
# out.tgz is read when it is there (the stage before) and written anew when a part has ended, so a stage that is cut off loses one part's
# newest rows at most. DEVICE=cpu OPTIONS="--small" SCALE=0.1 tries it without a GPU.
set -u
stage=${1:?stage 1, 2 or 3} archive=$(realpath -m "${2:?archive}") harness=${3:-servetwin}
here=$(cd "$(dirname "$0")" && pwd)
[ -e "$harness" ] && harness=$(realpath "$harness")
device=${DEVICE:-cuda} scale=${SCALE:-1} python=${PYTHON:-python3}
out=$(mktemp -d)/measurement
mkdir -p "$out"
[ -e "$archive" ] && tar xzf "$archive" -C "$out"
cd "$here" || exit 1

part() { # name, budget [s], further options
    local budget
    budget=$(awk "BEGIN { print $2 * $scale }")
    # A part minds its budget itself; the time-out is for one that hangs.
    timeout -k 15 "$(awk "BEGIN { print int($budget + 60 * $scale + 20) }")" \
        "$python" -m servetwin_gpu --part "$1" --out "$out" --budget "${budget}s" --device "$device" ${OPTIONS:-} "${@:3}"
    echo "$1: exit code $?" >&2
    tar czf "$archive.part" -C "$out" . && mv "$archive.part" "$archive"
}

# The first start reads PyTorch from a cold disk, which should come out of no part's budget.
start=$SECONDS
timeout -k 15 120 "$python" -c "import torch; torch.zeros(1, device='$device')"
echo "first start: exit code $? after $((SECONDS - start)) s" >&2

case $stage in
    1) part ceilings 40; part operators 330; part steps 120 ;;
    2) part steps 170; part serving 330 --engine paged --harness "$harness" ;;
    3) part serving 300 --engine transformers --harness "$harness"; part operators 210 ;;
    *) echo "stage 1, 2 or 3, got $stage" >&2; exit 2 ;;
esac
for f in "$out"/*.csv "$out"/*/*.csv; do [ -e "$f" ] && echo "$(wc -l < "$f") lines: ${f#"$out"/}"; done
