#!/bin/sh
# A server that people wait for, and a batch job on the same device: with a low priority the job works
# while nobody asks, and the answers take as long as on a device of their own.
#
#   sh examples/server-and-batch.sh                    # on this machine's GPU
#   SIMULATE=h100 sh examples/server-and-batch.sh      # on a simulated one
#
# It asks 100 times while there is no job, while the job has the normal priority, and while it has the
# low one. In another terminal, `pyvgpu top` shows both.
set -eu
programs=$(dirname "$0")/programs
port=${PORT:-8000}
pyvgpu=${PYVGPU:-pyvgpu}
python=${PYTHON:-python3}
named=${NAMED:-} # what names end with, where others of these are taken

begin() {
    exec "$pyvgpu" run ${SIMULATE:+--simulate "$SIMULATE"} "$@"
}
ask() {
    "$python" "$programs/ask.py" "$port" "${TIMES:-100}" "$1"
}

server='' batch=''
trap 'kill $server $batch 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM
begin --name "server$named" --vcore 60 --vmemory 4GiB --priority high -- \
    "$python" "$programs/serve.py" "$port" >/dev/null &
server=$!
ask 'alone'
begin --name "batch$named" --vcore 40 --vmemory 8GiB -- \
    "$python" "$programs/train.py" 1000000 >/dev/null &
batch=$!
until "$pyvgpu" set "batch$named" --priority normal >/dev/null 2>&1; do
    kill -0 "$batch" # it has not failed
    sleep 0.1
done
sleep 2 # it trains by then
ask 'beside a job of normal priority'
"$pyvgpu" set "batch$named" --priority low
ask 'beside a job of low priority'
