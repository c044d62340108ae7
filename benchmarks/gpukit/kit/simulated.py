"""Stages on a simulated device: locating its driver."""

import os

SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def environment(model):
    """Return variables by which this process's children find the simulated machine *model*."""
    from pyvgpu import shim
    from pyvgpu.simulation import simulator

    machine = simulator.open_machine(model)
    folder = machine.folder.with_name(f"{machine.folder.name}.driver")
    folder.mkdir(exist_ok=True)
    for soname in SONAMES:
        (library,) = shim.simulator_libraries().glob(f"{soname[:-2]}.*")
        draft = folder / f".{soname}.{os.getpid()}"
        draft.symlink_to(library)
        draft.replace(folder / soname)  # which may be of another installation
    before = os.environ.get("LD_LIBRARY_PATH")
    return {
        **machine.environment,
        "LD_LIBRARY_PATH": f"{folder}:{before}" if before else str(folder),
        "PYVGPU_KIT_SIMULATE": model,
    }
