"""Calls that fail in another thread during a capture, by its mode; and after an exchange."""

import ctypes
import itertools
import threading

from kit import cuda, watch

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
STREAMS = {"non-blocking": cuda.NON_BLOCKING, "blocking": 0}  # against the legacy stream
MODES = {"GLOBAL": GLOBAL, "THREAD_LOCAL": THREAD_LOCAL, "RELAXED": RELAXED}


class Setting:
    """A capture in one mode, and what another thread calls meanwhile."""

    def __init__(self, device, flags):
        self.device, self.raw = device, device.cuda.raw
        self.captured, self.other = cuda.P(), device.stream()
        device.cuda.cuStreamCreate(ctypes.byref(self.captured), flags)
        self.recorded, self.event = device.event(), device.event()
        device.cuda.cuEventRecord(self.recorded, self.other)
        device.wait(self.other)
        self.pointer = device.allocate(4096)

    def calls(self):
        raw, elapsed, made = self.raw, ctypes.c_float(), cuda.U64()
        return {
            "query an event of another stream": lambda: raw.cuEventQuery(self.recorded),
            "record an event in another stream": lambda: raw.cuEventRecord(self.event, self.other),
            "elapsed time of two events": lambda: raw.cuEventElapsedTime(
                ctypes.byref(elapsed), self.recorded, self.recorded),
            "create and destroy an event": self.create_event,
            "query another stream": lambda: raw.cuStreamQuery(self.other),
            "synchronise another stream": lambda: raw.cuStreamSynchronize(self.other),
            "launch into another stream": lambda: self.launch(self.other),
            "allocate memory": lambda: self.allocate(made),
            "cuMemGetInfo": lambda: raw.cuMemGetInfo_v2(
                ctypes.byref(cuda.SIZE()), ctypes.byref(cuda.SIZE())),
            "IsCapturing of the legacy stream": lambda: self.status(1),
            "IsCapturing of the null stream": lambda: self.status(0),
            "IsCapturing of another stream": lambda: self.status(self.other),
            "IsCapturing of the captured stream": lambda: self.status(self.captured),
        }  # fmt: skip

    def create_event(self):
        made = cuda.P()
        return self.raw.cuEventCreate(ctypes.byref(made), 0) or self.raw.cuEventDestroy_v2(made)

    def launch(self, stream):
        try:
            self.device.work(1000, stream)
        except cuda.CudaError as exc:
            return exc.code
        return 0

    def allocate(self, made):
        code = self.raw.cuMemAlloc_v2(ctypes.byref(made), cuda.SIZE(4096))
        return code or self.raw.cuMemFree_v2(made)

    def status(self, stream):
        state = ctypes.c_int(-1)
        stream = cuda.P(stream) if isinstance(stream, int) else stream
        code = self.raw.cuStreamIsCapturing(stream, ctypes.byref(state))
        return code or f"0, state {state.value}"


def run(report):
    device = cuda.Device()
    titles = list(Setting(device, cuda.NON_BLOCKING).calls())
    for case in itertools.product(STREAMS, MODES, (False, True), titles):
        watch.attempt(report, " ".join(map(str, case)), lambda c=case: one(report, device, *c))
    device.wait()


def one(report, device, stream, mode, exchange, title):
    """One call in one capture: its result, and whether the capture is whole after it."""
    setting = Setting(device, STREAMS[stream])
    raw, answers = setting.raw, []

    def beside():
        device.cuda.cuCtxSetCurrent(device.context)
        before = ctypes.c_int(RELAXED)
        if exchange:
            raw.cuThreadExchangeStreamCaptureMode(ctypes.byref(before))
        answers.append(setting.calls()[title]())
        if exchange:
            raw.cuThreadExchangeStreamCaptureMode(ctypes.byref(before))

    device.cuda.cuStreamBeginCapture_v2(setting.captured, MODES[mode])
    device.work(1000, setting.captured)
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    graph = cuda.P()
    ended = raw.cuStreamEndCapture(setting.captured, ctypes.byref(graph))
    if graph.value:
        device.cuda.cuGraphDestroy(graph)
    way = ", after an exchange to RELAXED" if exchange else ""
    report.fact(
        f"capture of a {stream} stream in {mode}, another thread{way}: {title}",
        {"result": answers[0], "the capture ends with": ended},
    )
