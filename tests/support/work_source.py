"""Prelude for programs that launch kernels of a given length, in every form, and capture them."""

LAUNCHES = """
IMAGE = b".version 8.0\\n.target sm_70\\n.address_size 64\\n" \\
        b".visible .entry sim_spin(.param .u64 ns) { ret; }\\n"
class Config(ctypes.Structure):
    _fields_ = [("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT), ("stream", P),
                ("attributes", P), ("count", UINT)]
function, stream = P(), P()
spin_ns = U64(1_000_000)
arguments = (P * 1)(ctypes.addressof(spin_ns))
def begin():
    module = P()
    context()
    check(cuda.cuModuleLoadData(byref(module), IMAGE))
    check(cuda.cuModuleGetFunction(byref(function), module, b"sim_spin"))
    check(cuda.cuStreamCreate(byref(stream), UINT(1)))
def plain(form="", on=None):
    call = getattr(cuda, "cuLaunchKernel" + form)
    return call(function, 1, 1, 1, 1, 1, 1, 0, on or stream, arguments, None)
def extended(form="", on=None):
    one = (UINT * 3)(1, 1, 1)
    config = Config(one, one, 0, on or stream, None, 0)
    return getattr(cuda, "cuLaunchKernelEx" + form)(byref(config), function, arguments, None)
def cooperative(form="", on=None):
    call = getattr(cuda, "cuLaunchCooperativeKernel" + form)
    return call(function, 1, 1, 1, 1, 1, 1, 0, on or stream, arguments)
def capture(launch, form=""):
    graph = P()
    check(getattr(cuda, "cuStreamBeginCapture" + ("_v2" + form))(stream, 2))
    launch()
    check(getattr(cuda, "cuStreamEndCapture" + form)(stream, byref(graph)))
    return graph
def instantiate(graph):
    executable = P()
    check(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, U64(0)))
    return executable
def wait():
    check(cuda.cuCtxSynchronize())
"""
