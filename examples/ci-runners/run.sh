#!/bin/sh
# CI runners that share a GPU: each job gets a quarter of it.
#
#   SIMULATE=h100 sh examples/ci-runners/run.sh      # on a simulated GPU
#   sh examples/ci-runners/run.sh                    # on this machine's GPU
#
# Each of JOBS jobs (default 6) is given to a runner at once. Four fit on the GPU; the others wait
# until one has ended. The last job allocates too much memory: it fails, and the others do not.
# STEPS: training steps of a job. PYVGPU, PYTHON: other programs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../programs${PYTHONPATH:+:$PYTHONPATH}"
export PYVGPU="${PYVGPU:-pyvgpu}" SIMULATE="${SIMULATE:-}"
python=${PYTHON:-python3}
jobs=${JOBS:-6}

work=$(mktemp -d)
runners=''
trap 'kill $runners 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
for number in $(seq "$jobs"); do
    if [ "$number" = "$jobs" ]; then
        set -- "$here/greedy.py"
    else
        set -- "$here/../programs/train.py" "${STEPS:-100}"
    fi
    sh "$here/gpu-job.sh" "ci-$number${NAMED:-}" "$python" "$@" >"$work/$number" 2>&1 &
    runners="$runners $!"
done

failed=0
number=0
for runner in $runners; do
    number=$((number + 1))
    code=0
    wait "$runner" || code=$?
    echo "job $number: exit code $code: $(tail -n 1 "$work/$number")"
    [ "$code" = 0 ] || failed=$((failed + 1))
done
echo "$failed of $jobs jobs failed"
