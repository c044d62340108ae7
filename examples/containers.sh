#!/bin/sh
# Two containers on one GPU of this machine with Docker or Podman, without Kubernetes.
#
#   make wheels
#   sudo docker build --file examples/Containerfile --tag vgpu-examples .
#   sudo sh examples/containers.sh
#
# Each starts with `pyvgpu run`. Both containers and the host share one reservation folder: shares add
# up, `pyvgpu ps` on the host lists all, and a run for which too little is free is refused. A GPU needs
# NVIDIA's container toolkit and its CDI specification; SIMULATE=h100 uses a simulated device instead,
# ENGINE=podman Podman. This is for cooperative users: a container started without `pyvgpu run` has the
# bare device (docs/enforced.md).
set -eu
engine=${ENGINE:-docker}
image=${IMAGE:-vgpu-examples}
registry=/run/pyvgpu

mkdir -p "$registry"
chmod 1777 "$registry"
set -- --rm --volume "$registry:$registry"
if [ -n "${SIMULATE:-}" ]; then # both containers share one simulated machine
    machines=$(mktemp -d)
    trap 'rm -rf "$machines"' EXIT
    chmod 1777 "$machines"
    set -- "$@" --volume "$machines:/machines" --env PYVGPU_SIMULATED_MACHINES=/machines
else
    set -- "$@" --device nvidia.com/gpu=all
fi
# A container may not create the mount namespace that `pyvgpu run` uses elsewhere.
set -- "$@" "$image" pyvgpu run ${SIMULATE:+--simulate "$SIMULATE"} --no-namespace

"$engine" run "$@" --name small --vcore 30 --vmemory 4GiB -- python3 /examples/train.py 50 &
small=$!
"$engine" run "$@" --name large --vcore 70 --vmemory 8GiB -- python3 /examples/train.py 50 &
large=$!
wait $small
wait $large
