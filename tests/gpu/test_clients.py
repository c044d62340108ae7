"""Real clients on a real GPU compute the same with and without a quota, and see the quota."""

import importlib.metadata
import json
import sys

import pytest

pytestmark = pytest.mark.gpu

GIB = 1 << 30
QUOTA = 4 * GIB


def lines(total, *, refused):
    return [f"total {total}", "same 1", f"beyond {2 if refused else 0}"]


def test_driver_client_is_limited(gpu, build, bare, held):
    program = build("driver_client", "-l:libcuda.so.1")
    assert bare(program, QUOTA)[1:] == lines(0, refused=False)[1:]
    assert held(QUOTA, program, QUOTA) == lines(QUOTA, refused=True)


def test_runtime_client_is_limited(gpu, build, bare, held):
    wheel = importlib.metadata.files("nvidia-cuda-runtime") or []
    library = next(f.locate() for f in wheel if f.name.startswith("libcudart.so"))
    program = build("runtime_client", str(library), f"-Wl,-rpath,{library.parent}")
    assert bare(program, QUOTA)[1:] == lines(0, refused=False)[1:]
    assert held(QUOTA, program, QUOTA) == lines(QUOTA, refused=True)


BINDINGS = """
import json, sys
from cuda.bindings import driver as cu
def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ok(cu.cuInit(0))
context = ok(cu.cuDevicePrimaryCtxRetain(0))
ok(cu.cuCtxSetCurrent(context))
free, total = ok(cu.cuMemGetInfo())
data = bytearray(range(256)) * 4096
back = bytearray(len(data))
pointer = ok(cu.cuMemAlloc(len(data)))
ok(cu.cuMemcpyHtoD(pointer, data, len(data)))
ok(cu.cuMemcpyDtoH(back, pointer, len(data)))
beyond = cu.cuMemAlloc(int(sys.argv[1]))[0]
print(json.dumps([total, back == data, int(beyond)]))
"""


def test_cuda_bindings_is_limited(gpu, bare, held):
    command = (sys.executable, "-c", BINDINGS, str(QUOTA))
    assert json.loads(bare(*command)[-1])[1:] == [True, 0]
    assert json.loads(held(QUOTA, *command)[-1]) == [QUOTA, True, 2]


TORCH = """
import json, sys, torch
free, total = torch.cuda.mem_get_info()
a = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
result = float((a @ a).cpu())
try:
    torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
    beyond = "allocated"
except torch.OutOfMemoryError:
    beyond = "refused"
print(json.dumps([total, result, beyond]))
"""


def test_pytorch_is_limited_and_computes_the_same(gpu, bare, held):
    command = ("python3", "-c", TORCH, str(QUOTA))
    try:
        bare("python3", "-c", "import torch; assert torch.cuda.is_available()")
    except AssertionError as exc:
        pytest.skip(f"PyTorch with CUDA is not here: {exc}")
    alone = json.loads(bare(*command)[-1])
    quota = json.loads(held(QUOTA, *command)[-1])
    assert alone[1:] == [quota[1], "allocated"]
    assert quota[0::2] == [QUOTA, "refused"]


def test_nvml_shows_the_quota(gpu, held):
    source = (
        "import pynvml as n; n.nvmlInit(); "
        "print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total)"
    )
    assert held(QUOTA, sys.executable, "-c", source)[-1] == str(QUOTA)
