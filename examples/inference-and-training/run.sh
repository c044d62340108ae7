#!/bin/sh
# An LLM server in the manner of vLLM and a training job on one GPU.
#
#   SIMULATE=h100 sh examples/inference-and-training/run.sh      # on a simulated GPU
#   sh examples/inference-and-training/run.sh                    # on this machine's GPU
#
# The server reserves 90 percent of the memory that it sees, which is its share and not the GPU; the
# job has low priority, so it uses only the time between the server's requests.
# CLIENTS, REQUESTS: concurrent users, and requests of each. PORT, PYVGPU, PYTHON: other programs,
# another port.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs=$here/../programs
export PYTHONPATH="$programs${PYTHONPATH:+:$PYTHONPATH}"
pyvgpu=${PYVGPU:-pyvgpu}
python=${PYTHON:-python3}
port=${PORT:-8000}
named=${NAMED:-} # suffix of the run names, if these names are taken

begin() {
    exec "$pyvgpu" run ${SIMULATE:+--simulate "$SIMULATE"} "$@"
}
load() {
    "$python" "$here/load.py" "$port" "${CLIENTS:-8}" "${REQUESTS:-20}" "$1"
}
started() { # started PROCESS FILE TEXT: wait until a program has printed that it is ready
    until grep "$3" "$2"; do
        kill -0 "$1" # fail if it has failed
        sleep 0.1
    done
}

work=$(mktemp -d)
server='' training=''
trap 'kill $server $training 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
begin --name "llm$named" --vcore 70 --vmemory 40GiB --priority high -- \
    "$python" "$here/engine.py" "$port" --memory-utilization 0.9 >"$work/llm" &
server=$!
started $server "$work/llm" 'KV cache'
load 'alone'

begin --name "training$named" --vcore 30 --policy elastic --vmemory 30GiB --priority low -- \
    "$python" "$programs/train.py" 1000000 >"$work/training" &
training=$!
started $training "$work/training" 'MiB free'
load 'beside the training'
"$pyvgpu" ps
