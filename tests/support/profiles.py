"""Generates small profiler files (torch.profiler, Nsight Systems) of a training program."""

import dataclasses
import gzip
import json
import re
import sqlite3

US, MS = 1_000, 1_000_000
PROCESS, THREAD = 4242, 4243


@dataclasses.dataclass
class Profile:
    """A program of several steps; each launches kernels in sequence and waits for them."""

    steps: int = 3
    kernels: int = 20  # per step
    kernel_ns: int = 500 * US
    gap_ns: int = 20 * US  # between launches, on the host
    think_ns: int = 2 * MS  # at the beginning of each step
    process: int = PROCESS
    device: int = 0
    start_ns: int = 1_700_000_000_000_000_123  # on the profilers' clocks

    def events(self):
        """Yield calls, activities and steps: (kind, name, start, duration, correlation, more)."""
        now, free, correlation = self.start_ns, 0, 1
        for _ in range(self.steps):
            begin = now
            now += self.think_ns
            yield "call", "cudaMemcpyAsync", now, 8 * US, correlation, {}
            free = max(now + 5 * US, free) + 10 * US
            copied = "Memcpy HtoD (Pinned -> Device)"
            yield "copy", copied, free - 10 * US, 10 * US, correlation, {"stream": 7}
            correlation += 1
            for number in range(self.kernels):
                now += self.gap_ns
                yield "call", "cudaLaunchKernel", now, 5 * US, correlation, {}
                start = max(now + 5 * US, free + US)
                about = {"stream": 7, "grid": [64 * (1 + number % 3), 1, 1], "block": [256, 1, 1]}
                name = f"void gemm_{number % 4}<float>(float*)"
                yield "kernel", name, start, self.kernel_ns, correlation, about
                free, now, correlation = start + self.kernel_ns, now + 5 * US, correlation + 1
            duration = max(5 * US, free - now)
            yield "call", "cudaDeviceSynchronize", now, duration, correlation, {}
            now, correlation = now + duration, correlation + 1
            yield "step", "ProfilerStep#1", begin, now - begin, None, {}


def kineto(profile, *, marks=True):
    """Return a trace document as torch.profiler exports it."""
    events = [{"ph": "M", "name": "process_name", "pid": profile.process, "args": {}}]
    for kind, name, start, duration, correlation, more in profile.events():
        event = {
            "ph": "X",
            "name": name,
            "ts": digits(start),
            "dur": digits(duration),
            "pid": profile.process,
            "tid": THREAD,
        }
        if kind == "step":
            if marks:
                events.append({**event, "cat": "user_annotation", "args": {}})
            continue
        event["args"] = {"correlation": correlation}
        if kind == "call":
            events.append({**event, "cat": "cuda_runtime"})
            continue
        event["args"] |= {"device": profile.device, "stream": more["stream"]}
        if kind == "kernel":
            event["args"] |= {"grid": more["grid"], "block": more["block"], "shared memory": 4096}
        category = "kernel" if kind == "kernel" else "gpu_memcpy"
        events.append({**event, "pid": profile.device, "tid": 7, "cat": category})
    properties = [{"id": profile.device, "name": "NVIDIA H100 80GB HBM3"}]
    return {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}


def digits(ns):
    """Return ns as a marked microsecond number with more digits than a float has; see pack()."""
    return f"@{ns // 1000}.{ns % 1000:03}@"


def pack(document):
    """Return a document as JSON, with marked numbers unquoted."""
    return re.sub(r'"@([0-9.]+)@"', r"\1", json.dumps(document))


def write_kineto(path, document):
    """Write a document, gzipped if the name ends in .gz."""
    text = pack(document)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def write_nsys(path, *profiles):
    """Write the tables of `nsys export --type sqlite` that the importer reads."""
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.executescript("""
        create table StringIds (id integer primary key, value text);
        create table TARGET_INFO_GPU (id integer, name text);
        create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId,
            globalPid, demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ,
            staticSharedMemory, dynamicSharedMemory);
        create table CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, correlationId,
            globalPid, copyKind, bytes);
        create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
    """)
    strings = {}

    def string(text):
        return strings.setdefault(text, len(strings) + 1)

    for profile in profiles:
        owner = profile.process << 24
        db.execute("insert into TARGET_INFO_GPU values (?, 'NVIDIA A100')", (profile.device,))
        for kind, name, start, duration, correlation, more in profile.events():
            span = (start, start + duration)
            if kind == "call":
                row = (*span, owner | THREAD, correlation, string(f"{name}_v7000"))
                db.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,?,?,?)", row)
            elif kind != "step":
                where = (*span, profile.device, more["stream"], correlation, owner)
                if kind == "copy":
                    insert = "insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?,?,?,?,?,?,1,4096)"
                    db.execute(insert, where)
                else:
                    row = (*where, string(name), *more["grid"], *more["block"], 0, 4096)
                    marks = ",".join("?" * len(row))
                    db.execute(f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({marks})", row)
    db.executemany("insert into StringIds values (?, ?)", [(n, s) for s, n in strings.items()])
    db.commit()
    db.close()
    return path
