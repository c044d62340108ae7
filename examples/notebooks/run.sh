#!/bin/sh
# One notebook server, three users, one GPU.
#
#   SIMULATE=h100 sh examples/notebooks/run.sh      # on a simulated GPU
#   sh examples/notebooks/run.sh                    # on this machine's GPU
#
# Alice computes, bob requests more memory than his share has, carol is not affected by either.
# BUSY: seconds for which alice computes. PORT, PYVGPU, PYTHON: other programs, another port.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../programs${PYTHONPATH:+:$PYTHONPATH}"
export PYVGPU="${PYVGPU:-pyvgpu}" SIMULATE="${SIMULATE:-}" NAMED="${NAMED:-}"
python=${PYTHON:-python3}
port=${PORT:-8888}

work=$(mktemp -d)
server=''
trap 'kill $server 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
"$python" "$here/server.py" "$port" alice bob carol >"$work/log" &
server=$!
until grep 'on port' "$work/log"; do
    kill -0 "$server" # fail if the server has failed
    sleep 0.1
done

# cell USER CODE: run a cell in the user's notebook
cell() {
    "$python" "$here/cell.py" "$port" "$1" "$2"
}

for user in alice bob carol; do
    cell "$user" 'print(device.memory()[1] >> 30, "GiB of GPU memory")'
done
cell alice "import time
begun = time.monotonic()
while time.monotonic() - begun < ${BUSY:-5}:
    device.compute(milliseconds=50)
print('has computed')" &
alice=$!
cell bob 'device.allocate(20 << 30)'
cell carol 'values = device.floats(1024, 1.5)
device.add(values, values, 1024)
print("sum:", device.read(values, 1)[0])'
"$PYVGPU" ps
wait "$alice"
