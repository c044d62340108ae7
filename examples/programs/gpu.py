"""Minimal GPU access through CUDA's driver API: needs no package and no toolkit.

A simulated device knows these kernels by name, and does the same without running their code.
"""

import ctypes

KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64

// out[i] = a[i] + b[i] for count floats, by a grid of any size
.visible .entry sim_add(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 count)
{
    .reg .pred %last;
    .reg .b32 %block, %width, %lane, %blocks;
    .reg .b64 %i, %step, %n, %from, %with, %to, %at;
    .reg .f32 %x, %y;
    ld.param.u64 %to, [out];
    ld.param.u64 %from, [a];
    ld.param.u64 %with, [b];
    ld.param.u64 %n, [count];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    cvta.to.global.u64 %with, %with;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %lane, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %i, %block, %width;
    cvt.u64.u32 %step, %lane;
    add.u64 %i, %i, %step;
    mul.wide.u32 %step, %blocks, %width;
next:
    setp.ge.u64 %last, %i, %n;
    @%last bra done;
    shl.b64 %at, %i, 2;
    add.u64 %at, %from, %at;
    ld.global.f32 %x, [%at];
    shl.b64 %at, %i, 2;
    add.u64 %at, %with, %at;
    ld.global.f32 %y, [%at];
    add.f32 %x, %x, %y;
    shl.b64 %at, %i, 2;
    add.u64 %at, %to, %at;
    st.global.f32 [%at], %x;
    add.u64 %i, %i, %step;
    bra next;
done:
    ret;
}

// y[i] = a * x[i] + y[i] for count floats
.visible .entry sim_saxpy(.param .u64 y, .param .u64 x, .param .f32 a, .param .u64 count)
{
    .reg .pred %last;
    .reg .b32 %block, %width, %lane, %blocks;
    .reg .b64 %i, %step, %n, %from, %to, %offset, %at;
    .reg .f32 %factor, %left, %right;
    ld.param.u64 %to, [y];
    ld.param.u64 %from, [x];
    ld.param.f32 %factor, [a];
    ld.param.u64 %n, [count];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %lane, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %i, %block, %width;
    cvt.u64.u32 %step, %lane;
    add.u64 %i, %i, %step;
    mul.wide.u32 %step, %blocks, %width;
next:
    setp.ge.u64 %last, %i, %n;
    @%last bra done;
    shl.b64 %offset, %i, 2;
    add.u64 %at, %from, %offset;
    ld.global.f32 %left, [%at];
    add.u64 %at, %to, %offset;
    ld.global.f32 %right, [%at];
    fma.rn.f32 %right, %factor, %left, %right;
    st.global.f32 [%at], %right;
    add.u64 %i, %i, %step;
    bra next;
done:
    ret;
}

// copies bytes, one by one
.visible .entry sim_copy(.param .u64 out, .param .u64 in, .param .u64 bytes)
{
    .reg .pred %last;
    .reg .b32 %block, %width, %lane, %blocks, %byte;
    .reg .b64 %i, %step, %n, %from, %to, %at;
    ld.param.u64 %to, [out];
    ld.param.u64 %from, [in];
    ld.param.u64 %n, [bytes];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %lane, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %i, %block, %width;
    cvt.u64.u32 %step, %lane;
    add.u64 %i, %i, %step;
    mul.wide.u32 %step, %blocks, %width;
next:
    setp.ge.u64 %last, %i, %n;
    @%last bra done;
    add.u64 %at, %from, %i;
    ld.global.u8 %byte, [%at];
    add.u64 %at, %to, %i;
    st.global.u8 [%at], %byte;
    add.u64 %i, %i, %step;
    bra next;
done:
    ret;
}

// spins for ns nanoseconds of the device's clock
.visible .entry sim_spin(.param .u64 ns)
{
    .reg .pred %early;
    .reg .b64 %long, %begun, %now;
    ld.param.u64 %long, [ns];
    mov.u64 %begun, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begun;
    setp.lt.u64 %early, %now, %long;
    @%early bra again;
    ret;
}
"""
_BLOCKS, _THREADS = 256, 256
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Device:
    """The first GPU that this process sees."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as exc:
            raise SystemExit(f"{exc}; without a GPU: pyvgpu run --simulate h100 -- ...") from exc
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self.use()
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), KERNELS)
        self._kernels = {}
        for name in ("add", "saxpy", "copy", "spin"):
            kernel = self._kernels[name] = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(kernel), module, f"sim_{name}".encode())

    def use(self) -> None:
        """Make the context current in the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def floats(self, count: int, value: float) -> ctypes.c_uint64:
        """Allocate *count* floats with this value; return their device address."""
        at, bits = self.allocate(4 * count), ctypes.c_uint.from_buffer_copy(ctypes.c_float(value))
        self._call("cuMemsetD32_v2", at, bits, ctypes.c_size_t(count))
        return at

    def read(self, at: ctypes.c_uint64, count: int) -> list[float]:
        """Copy *count* floats from the device."""
        found = (ctypes.c_float * count)()
        self._call("cuMemcpyDtoH_v2", found, at, ctypes.c_size_t(4 * count))
        return list(found)

    def add(self, to: ctypes.c_uint64, what: ctypes.c_uint64, count: int) -> None:
        """Add the floats at *what* to those at *to*, after all earlier work."""
        self._launch("add", to, to, what, ctypes.c_uint64(count))

    def saxpy(self, y: ctypes.c_uint64, x: ctypes.c_uint64, a: float, count: int) -> None:
        """Add *a* times the floats at *x* to those at *y*, after all earlier work."""
        self._launch("saxpy", y, x, ctypes.c_float(a), ctypes.c_uint64(count))

    def copy(self, to: ctypes.c_uint64, what: ctypes.c_uint64, count: int) -> None:
        """Copy *count* floats with a kernel, after all earlier work."""
        self._launch("copy", to, what, ctypes.c_uint64(4 * count))

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocate *size* bytes; return their device address. MemoryError beyond the quota."""
        at = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def release(self, at: ctypes.c_uint64) -> None:
        """Free an allocation."""
        self._call("cuMemFree_v2", at)

    def compute(self, milliseconds: int) -> None:
        """Keep the device busy for that long; return when all work is done."""
        for _ in range(milliseconds):  # many short kernels, as frameworks launch
            self._launch("spin", ctypes.c_uint64(1_000_000))
        self._call("cuCtxSynchronize")

    def _launch(self, name: str, *values: ctypes.c_uint64 | ctypes.c_float) -> None:
        where = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (_BLOCKS, 1, 1, _THREADS, 1, 1, 0)  # without dynamic shared memory
        self._call("cuLaunchKernel", self._kernels[name], *shape, None, where, None)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(result, ctypes.byref(text))
            kind = MemoryError if result == _OUT_OF_MEMORY else RuntimeError
            raise kind(f"{name}: {(text.value or b'unknown error').decode()}")
