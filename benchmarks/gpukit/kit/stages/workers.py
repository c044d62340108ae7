"""Data loaders: workers forked beside a context, one of them killed.

With PyTorch's own loader where that is installed, and with the same by ``multiprocessing``.
"""

import importlib.util

from kit import cuda, shimmed

QUOTA_BYTES = 4 << 30
QUOTA = ("--vmemory", f"{QUOTA_BYTES >> 30}GiB")
SECONDS = 90

PLAIN = """
import json, multiprocessing, os, signal
from kit import cuda
device = cuda.Device()
held = device.allocate(1 << 30)
before = device.memory()[0]
context = multiprocessing.get_context("fork")
def serve(tasks, results):
    while (task := tasks.get()) is not None:
        results.put((os.getpid(), sum(range(task))))
def epoch(kill):
    tasks, results = context.SimpleQueue(), context.SimpleQueue()
    workers = [context.Process(target=serve, args=(tasks, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    if kill:
        os.kill(workers[0].pid, signal.SIGKILL)
        workers[0].join()
        tasks, results = context.SimpleQueue(), context.SimpleQueue()
        for worker in workers[1:]:
            worker.terminate()
            worker.join()
        return [worker.exitcode for worker in workers]
    for task in range(64):
        tasks.put(task)
    total = sum(results.get()[1] for _ in range(64))
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join(10)
    return [total, *(worker.exitcode for worker in workers)]
first, killed, second = epoch(False), epoch(True), epoch(False)
device.work(1000)
device.wait()
print(json.dumps({"result": [first, killed, second], "kept": device.memory()[0] == before,
                  "total": device.memory()[1]}))
"""

TORCH = """
import json, os, signal, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, i):
        return torch.full((64,), float(i))
weights = torch.ones(64, device="cuda")
def epoch(kill=False):
    loader = DataLoader(Numbers(), batch_size=16, num_workers=2, pin_memory=True)
    total, batches = 0.0, iter(loader)
    for number, batch in enumerate(batches):
        if kill and number == 2:
            os.kill(batches._workers[0].pid, signal.SIGKILL)
        total += float((batch.cuda(non_blocking=True) @ weights).sum())
    return total
first = epoch()
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()  # with what cuBLAS keeps
try:
    killed = str(epoch(kill=True))
except RuntimeError as exc:
    killed = "raised" if "killed" in str(exc) or "exited" in str(exc) else str(exc)
second = epoch()
torch.cuda.synchronize()
print(json.dumps({"result": [first, killed, second],
                  "kept": torch.cuda.memory_allocated() == before,
                  "total": torch.cuda.mem_get_info()[1]}))
"""


def run(report):
    compare(report, "workers by multiprocessing", PLAIN)
    if importlib.util.find_spec("torch") is None:
        report.missing("PyTorch's DataLoader", "no such Python package: torch")
    elif cuda.simulated():
        report.missing(
            "PyTorch's DataLoader", "the simulated driver does not serve the CUDA runtime"
        )
    else:
        compare(report, "PyTorch's DataLoader", TORCH)


def compare(report, name, source):
    command = shimmed.python(source)
    bare, limited = (shimmed.answer(quota, command, SECONDS) for quota in (None, QUOTA))
    if isinstance(bare, str):
        report.missing(name, f"it does not run without a quota either: {bare}")
        return
    if isinstance(limited, str):
        report.guarantee(f"{name}: runs under a quota", False, limited)
        return
    report.guarantee(
        f"{name}: the same, one killed", limited["result"] == bare["result"],
        f"{limited['result']} with a quota, {bare['result']} without",
    )  # fmt: skip
    report.guarantee(f"{name}: nothing more is charged", limited["kept"], f"{limited}")
    report.guarantee(
        f"{name}: the quota is shown", limited["total"] == QUOTA_BYTES, f"total {limited['total']}"
    )
