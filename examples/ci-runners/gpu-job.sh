#!/bin/sh
# Run a CI job with a quarter of a GPU: `gpu-job.sh NAME COMMAND...`. While no GPU has that much free
# it waits, at most WAIT seconds (default 3600). The exit code is the job's own, or 69 if no GPU was
# free in time.
set -eu
name=$1
shift
until=$(($(date +%s) + ${WAIT:-3600}))
work=$(mktemp -d)
job=''
trap 'rm -rf "$work"' EXIT
trap '[ -z "$job" ] || { kill "$job" && wait "$job"; } 2>/dev/null; exit 143' INT TERM
while :; do
    # The marker tells a refusal by pyvgpu from a job that itself exits with 69.
    # shellcheck disable=SC2016 # expanded by the inner shell
    "${PYVGPU:-pyvgpu}" run ${SIMULATE:+--simulate "$SIMULATE"} --name "$name" \
        --vcore 25 --vmemory 10GiB -- \
        sh -c ': >"$1"; shift; exec "$@" 2>&3' - "$work/begun" "$@" 3>&2 2>"$work/refusal" &
    job=$!
    code=0
    wait "$job" || code=$?
    if [ "$code" != 69 ] || [ -e "$work/begun" ] || [ "$(date +%s)" -ge "$until" ]; then
        cat "$work/refusal" >&2
        exit "$code"
    fi
    sleep 1
done
