#!/bin/sh
# A class of 20 students on one GPU: each has 5 percent of its time and 3 GiB of its memory.
#
#   SIMULATE=h100 sh examples/class/run.sh      # on a simulated GPU
#   sh examples/class/run.sh                    # on this machine's GPU, of 64 GB or more
#
# Time that others do not use goes to the students that compute. One more student finds the GPU
# full, and is refused at once.
# STUDENTS: their number (divides 100). MEMORY: of each. PYVGPU, PYTHON: other programs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../programs${PYTHONPATH:+:$PYTHONPATH}"
pyvgpu=${PYVGPU:-pyvgpu}
python=${PYTHON:-python3}
students=${STUDENTS:-20}
vcore=$((100 / students))
memory=${MEMORY:-3GiB}

# student NAME COMMAND...: run a command with one student's share
student() {
    name=$1
    shift
    exec "$pyvgpu" run ${SIMULATE:+--simulate "$SIMULATE"} --name "$name${NAMED:-}" \
        --vcore "$vcore" --policy elastic --vmemory "$memory" -- "$@"
}

work=$(mktemp -d)
all=''
trap 'kill $all 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkfifo "$work/lesson"
for number in $(seq "$students"); do
    : >"$work/$number"
    student "student-$number" "$python" "$here/exercise.py" "$number" \
        <"$work/lesson" >"$work/$number" &
    all="$all $!"
done
exec 3>"$work/lesson" # the lesson ends when this is closed
until [ "$(cat "$work"/[0-9]* | grep -c 'is right')" = "$students" ]; do
    for process in $all; do
        kill -0 "$process" # fail if it has failed
    done
    sleep 0.2
done
"$pyvgpu" ps
echo 'one more student:'
(student late true) && exit 1
exec 3>&-
wait
sort -n -k 2 "$work"/[0-9]*
