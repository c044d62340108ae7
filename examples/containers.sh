#!/bin/sh
# Two containers on one device of this machine, without Kubernetes, by Docker or Podman.
#
#   make wheels
#   sudo docker build --file examples/Containerfile --tag vgpu-examples .
#   sudo sh examples/containers.sh
#
# Each begins with `pyvgpu run`. The machine's book of promises is one folder for both and for the
# machine itself: so parts add up, `pyvgpu ps` there lists all, and what is not free is refused. With
# a GPU it takes NVIDIA's container toolkit and its CDI specification; SIMULATE=h100 takes a simulated
# device instead, ENGINE=podman Podman. It is for people who mean well: who starts a container without
# `pyvgpu run` has the bare device (docs/enforced.md).
set -eu
engine=${ENGINE:-docker}
image=${IMAGE:-vgpu-examples}
book=/run/pyvgpu

mkdir -p "$book"
chmod 1777 "$book"
set -- --rm --volume "$book:$book"
if [ -n "${SIMULATE:-}" ]; then # one machine for both, as a GPU is
    machines=$(mktemp -d)
    trap 'rm -rf "$machines"' EXIT
    chmod 1777 "$machines"
    set -- "$@" --volume "$machines:/machines" --env PYVGPU_SIMULATED_MACHINES=/machines
else
    set -- "$@" --device nvidia.com/gpu=all
fi
# A container may not make the mount namespace that a run has elsewhere.
set -- "$@" "$image" pyvgpu run ${SIMULATE:+--simulate "$SIMULATE"} --no-namespace

"$engine" run "$@" --name small --vcore 30 --vmemory 4GiB -- python3 /examples/train.py 50 &
small=$!
"$engine" run "$@" --name large --vcore 70 --vmemory 8GiB -- python3 /examples/train.py 50 &
large=$!
wait $small
wait $large
