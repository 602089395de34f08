#!/bin/sh
# Gradient descent on (w - 3)^2 with noise, in a shell script. It continues from its checkpoint.
#
#     sweepd train --search-space examples/programs/descent.toml --n-trials 30 \
#         --env 'command:sh examples/programs/descent.sh {rate} {momentum} {seed}'
set -eu
rate=$1 momentum=$2 seed=$3
kept=${SWEEPD_CHECKPOINT_DIR:-.}/checkpoint
step=0 w=0 speed=0
if [ -e "$kept" ]; then
    read -r step w speed <"$kept"
fi
while [ "$step" -lt "${SWEEPD_BUDGET:-100}" ]; do
    # Ten steps; awk has the numbers that sh lacks.
    state=$(awk -v step="$step" -v w="$w" -v v="$speed" -v rate="$rate" -v momentum="$momentum" \
        -v seed="$seed" 'BEGIN {
            srand(seed + step)
            for (end = step + 10; step < end; step++) {
                v = momentum * v - rate * (2 * (w - 3) + rand() - 0.5)
                w += v
            }
            printf "%d %.9g %.9g %.9g", step, w, v, -(w - 3) ^ 2
        }')
    set -- $state
    step=$1 w=$2 speed=$3
    printf '{"step": %s, "value": %s}\n' "$step" "$4"
    echo "$step $w $speed" >"$kept.new"
    mv "$kept.new" "$kept" # whole or not at all
done
