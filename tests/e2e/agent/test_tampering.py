"""Containers that modify their own ledger: their memory still counts, and an event names them."""

import json

import bindings_image
import pytest
import rig
from agents import container

pytestmark = pytest.mark.e2e

PROGRAM = """
import ctypes, json, os, subprocess, sys, time
from ctypes import byref
cuda = ctypes.CDLL("libcuda.so.1")
def allocate(size):
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    return cuda.cuMemAlloc_v2(byref(pointer), ctypes.c_size_t(size))
if len(sys.argv) > 1:
    sys.exit(allocate(1 << 30))
def another():
    return subprocess.run([sys.executable, "-c", os.environ["PROGRAM"], "1"]).returncode
answers = [allocate(1 << 30), another()]
for place in (65536, 4096, 256, 64):
    with open("/run/pyvgpu/usage", "r+b") as file:
        file.seek(place)
        file.write(bytes(os.fstat(file.fileno()).st_size - place))
    time.sleep(3)
    answers.append(another())
print(json.dumps(answers), flush=True)
while True:
    time.sleep(1)
"""
CONTEXTS = {
    "non-root": {"runAsUser": 10001, "runAsGroup": 10001},
    "restricted": {
        "runAsUser": 10001,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}


@pytest.fixture(scope="module")
def _image(running):
    bindings_image.make(running.folder)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.usefixtures("agent", "_image")
def test_tampering_with_the_ledger_is_reported(space, context):
    tampers = container("a", 30, 8)
    tampers |= {
        "image": bindings_image.NAME,
        "command": [bindings_image.COMMAND[0], "-c", PROGRAM],
        "env": [{"name": "PROGRAM", "value": PROGRAM}],
        "securityContext": CONTEXTS[context],
    }
    space.create("pods", rig.pod("p", tampers))
    space.create("pods", rig.pod("honest", container("a", 30, 8, "exec /stays")))
    event = space.until_event("p", "VGPUTampered")
    assert "was changed by something other than the shim" in event["message"]
    assert json.loads(space.first_line("p", "a")) == [0, 2, 2, 2, 2, 2]

    assert rig.runs(space.read("pods", "honest"), "a")
    events = space.server.items(space.path("events"), {})[0]
    reasons = {
        happening["reason"]
        for happening in events
        if happening["involvedObject"]["name"] == "honest"
    }
    assert not reasons & {"VGPUTampered", "VGPUQuotaBypassed"}
