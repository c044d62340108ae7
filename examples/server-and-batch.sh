#!/bin/sh
# An interactive server and a batch job on one GPU: with low priority the job runs while there are no
# requests, and answers take as long as on a device of their own.
#
#   sh examples/server-and-batch.sh                    # on this machine's GPU
#   SIMULATE=h100 sh examples/server-and-batch.sh      # on a simulated one
#
# It sends 100 requests each without a job, beside a job of normal priority, and beside a job of low
# priority. In another terminal, `pyvgpu top` shows both.
set -eu
programs=$(dirname "$0")/programs
port=${PORT:-8000}
pyvgpu=${PYVGPU:-pyvgpu}
python=${PYTHON:-python3}
named=${NAMED:-} # suffix of the run names, if these names are taken

begin() {
    exec "$pyvgpu" run ${SIMULATE:+--simulate "$SIMULATE"} "$@"
}
ask() {
    "$python" "$programs/ask.py" "$port" "${TIMES:-100}" "$1"
}
started() { # started PROCESS NAME PRIORITY: wait until a run has started, and fail if it cannot
    until "$pyvgpu" set "$2$named" --priority "$3" >/dev/null 2>&1; do
        kill -0 "$1"
        sleep 0.1
    done
}

server='' batch=''
trap 'kill $server $batch 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM
begin --name "server$named" --vcore 60 --vmemory 4GiB --priority high -- \
    "$python" "$programs/serve.py" "$port" >/dev/null &
server=$!
started $server server high
ask 'alone'
begin --name "batch$named" --vcore 40 --vmemory 8GiB -- \
    "$python" "$programs/train.py" 1000000 >/dev/null &
batch=$!
started $batch batch normal
sleep 2 # until it trains
ask 'beside a job of normal priority'
"$pyvgpu" set "batch$named" --priority low
ask 'beside a job of low priority'
