"""Frameworks: the same result with a quota as without; the quota is shown and enforced.

Each program prints one JSON object: ``result`` (must be the same both times), ``total`` (memory of
the device in bytes, as the framework knows it) and ``refused`` (whether twice the quota was).
"""

import concurrent.futures
import dataclasses
import importlib.util
import os

from kit import cuda, shimmed
from kit import report as reports

QUOTA_GIB = 8
ROOM_GIB = 6 * QUOTA_GIB  # of device memory, for a program that takes twice the quota and another
SECONDS = 60
QUOTA = ("--vmemory", f"{QUOTA_GIB}GiB", "--vcore", "90")

TOP = f"""
import json
TOO_MUCH = {2 * QUOTA_GIB} << 30
def tell(result, total, refused):
    print(json.dumps({{"result": result, "total": total, "refused": refused}}), flush=True)
def is_refused(allocate):
    try:
        allocate()
    except Exception as exc:
        if "memory" in str(exc).lower():
            return True
        raise
    return False
"""

BINDINGS = """
from cuda.bindings import driver
def ask(answer):
    code, *rest = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"out of memory" if code == 2 else str(code))
    return rest[0] if rest else None
ask(driver.cuInit(0))
device = ask(driver.cuDeviceGet(0))
ask(driver.cuCtxSetCurrent(ask(driver.cuDevicePrimaryCtxRetain(device))))
code, free, total = driver.cuMemGetInfo()
data = bytearray(range(256))
there = ask(driver.cuMemAlloc(256))
ask(driver.cuMemcpyHtoD(there, data, 256))
back = bytearray(256)
ask(driver.cuMemcpyDtoH(back, there, 256))
tell(back == data, total, is_refused(lambda: ask(driver.cuMemAlloc(TOO_MUCH))))
"""

NUMBA = """
import numpy
from numba import cuda
there = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
total = cuda.current_context().get_memory_info().total
refused = is_refused(lambda: cuda.device_array(TOO_MUCH, numpy.uint8))
tell(float(there.copy_to_host().sum()), int(total), refused)
"""

TORCH = """
import torch
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
size = 1024
a = torch.randn(size, size).cuda()
total = torch.cuda.mem_get_info()[1]
refused = is_refused(lambda: torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda"))
"""

TORCH_PLAIN = TORCH + "tell(float((a @ a).double().sum()), total, refused)\n"

TORCH_GRAPH = (
    TORCH
    + """
static = a.clone()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        made = torch.relu(static @ static)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    made = torch.relu(static @ static)
for _ in range(20):
    graph.replay()
torch.cuda.synchronize()
tell(float(made.double().sum()), total, refused)
"""
)

TORCH_COMPILE = (
    TORCH
    + """
@torch.compile
def work(x):
    return torch.relu(x @ x).sin().sum()
for _ in range(3):
    result = work(a)
tell(round(float(result), 0), total, refused)
"""
)

TORCH_WORKERS = (
    TORCH
    + """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(4096, dtype=torch.float32))
loader = DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)
tell(sum(float(batch.cuda().sum()) for batch, in loader), total, refused)
"""
)

TRITON = (
    TORCH
    + """
import importlib.util, pathlib, sys, tempfile
SOURCE = '''
import triton
import triton.language as tl
@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
'''
path = pathlib.Path(tempfile.mkdtemp()) / "kitkernel.py"
path.write_text(SOURCE)
spec = importlib.util.spec_from_file_location("kitkernel", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
out = torch.empty_like(a)
module.add[(size * size // 1024,)](a, a, out, size * size, BLOCK=1024)
tell(float(out.double().sum()), total, refused)
"""
)

TRANSFORMERS = (
    TORCH
    + """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4)).cuda().eval()
words = torch.arange(16).reshape(1, 16).cuda()
with torch.no_grad():
    made = model.generate(words, max_new_tokens=32, do_sample=False, pad_token_id=0)
tell(made.tolist(), total, refused)
"""
)

CUPY = """
import cupy
a = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024)
total = cupy.cuda.runtime.memGetInfo()[1]
refused = is_refused(lambda: cupy.empty(TOO_MUCH, dtype=cupy.uint8))
tell(float((a + a).sum()), int(total), refused)
"""

JAX = """
import jax, jax.numpy as jnp
a = jnp.arange(1 << 20, dtype=jnp.float32).reshape(1024, 1024)
total = jax.devices()[0].memory_stats().get("bytes_limit", 0)
rows = TOO_MUCH >> 20  # no dimension beyond 32 bits
refused = is_refused(lambda: jnp.zeros((rows, 1 << 20), dtype=jnp.uint8).block_until_ready())
tell(float((a + a).sum()), int(total), refused)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    name: str
    packages: tuple[str, ...]
    source: str
    environment: tuple[tuple[str, str], ...] = ()
    runtime: bool = True  # it uses the CUDA runtime, which the simulator does not serve
    shows_all: bool = True  # the total is the quota itself, not a part that it plans with
    seconds: int = SECONDS


def allocator(setting):
    """Return the variables that set PyTorch's allocator: the name since 2.9, and that before."""
    return (("PYTORCH_ALLOC_CONF", setting), ("PYTORCH_CUDA_ALLOC_CONF", setting))


PROGRAMS = (
    Program("cuda-bindings", ("cuda.bindings",), BINDINGS, runtime=False),
    Program("numba-cuda", ("numba_cuda", "numpy"), NUMBA, runtime=False),
    Program("PyTorch", ("torch",), TORCH_PLAIN),
    Program(
        "PyTorch, expandable segments", ("torch",), TORCH_PLAIN,
        allocator("expandable_segments:True"),
    ),
    Program(
        "PyTorch, cudaMallocAsync", ("torch",), TORCH_PLAIN,
        allocator("backend:cudaMallocAsync"),
    ),
    Program("PyTorch, CUDA graph", ("torch",), TORCH_GRAPH),
    Program("PyTorch, torch.compile", ("torch", "triton"), TORCH_COMPILE, seconds=150),
    Program("PyTorch, DataLoader workers", ("torch",), TORCH_WORKERS),
    Program("Triton", ("torch", "triton"), TRITON),
    Program("transformers", ("torch", "transformers"), TRANSFORMERS),
    Program("CuPy", ("cupy",), CUPY),
    Program(
        "JAX", ("jax",), JAX,
        (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("JAX_PLATFORMS", "cuda")), shows_all=False,
    ),
)  # fmt: skip


def run(report):
    if not cuda.has_room(report, QUOTA_GIB << 30):
        return
    for program in PROGRAMS:
        absent = [name for name in program.packages if not is_installed(name)]
        if absent:
            report.missing(program.name, f"no such Python package: {', '.join(absent)}")
        elif program.runtime and cuda.simulated():
            report.missing(program.name, "the simulated driver does not serve the CUDA runtime")
        elif reports.seconds_left() < program.seconds:
            report.missing(program.name, "no time was left")
        else:
            compare(report, program)


def is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def both_ways(command, seconds):
    """Return the answers of *command* without a quota and with it.

    At the same time, where the device has room for both: most of their time is not the device's.
    """
    nvml = cuda.nvml()
    room = cuda.nvml_memory(nvml, cuda.nvml_handle(nvml)).total >= ROOM_GIB << 30
    room = room and cuda.compute_mode() == cuda.SHARED
    with concurrent.futures.ThreadPoolExecutor(2 if room else 1) as pool:
        begun = [pool.submit(shimmed.answer, quota, command, seconds) for quota in (None, QUOTA)]
        return [one.result() for one in begun]


def compare(report, program):
    os.environ.update(program.environment)
    try:
        command = shimmed.python(TOP + program.source)
        bare, limited = both_ways(command, program.seconds)
    finally:
        for name, _ in program.environment:
            del os.environ[name]
    if isinstance(bare, str):
        report.missing(program.name, f"it does not run without a quota either: {bare}")
        return
    name = program.name
    if isinstance(limited, str):
        report.guarantee(f"{name}: runs under a quota", False, limited)
        return
    report.guarantee(
        f"{name}: the same result", limited["result"] == bare["result"],
        f"{limited['result']} with a quota, {bare['result']} without",
    )  # fmt: skip
    held = QUOTA_GIB << 30
    shown = limited["total"] == held if program.shows_all else limited["total"] <= held
    report.guarantee(f"{name}: the quota is shown", shown, f"total {limited['total']}")
    answer = "refused" if limited["refused"] else "given"
    report.guarantee(f"{name}: the quota is held", limited["refused"], f"twice of it was {answer}")
