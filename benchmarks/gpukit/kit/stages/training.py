"""A small GPT with PyTorch: speed of training and inference with a time share.

What it has of the device is its speed, by its speed alone and without the shim, times how busy it
keeps the device then, which is the union of its kernels by CUPTI.
"""

import importlib.util

from kit import cuda, shimmed
from kit import report as reports

SECONDS = 90
MEASURED_SECONDS = 4
SETTLING_SECONDS = 2  # in which what was saved of a share while the program began is spent
POINTS = 5  # by which a share may be off before the guarantee is broken
WAYS = {
    "without the shim": None,
    "with memory limited": ("--vmemory", "8GiB"),
    "vcore 50": ("--vmemory", "8GiB", "--vcore", "50"),
    "vcore 20": ("--vmemory", "8GiB", "--vcore", "20"),
}
SHARES = {"vcore 50": 50, "vcore 20": 20}

GPT = f"""
import json, random, sys, time, torch
from torch import nn
torch.manual_seed(0)
random.seed(0)
DEVICE, WORDS, WIDTH, LENGTH = "cuda", 4096, 512, 256
SETTLING, SECONDS = {SETTLING_SECONDS}, {MEASURED_SECONDS}
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        widen, narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.wide = nn.Sequential(widen, nn.GELU(), narrow)
    def forward(self, x):
        rows, length, _ = x.shape
        parts = self.mix(self.first(x)).view(rows, length, 3, 8, WIDTH // 8)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.wide(self.second(x))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.head = nn.Linear(WIDTH, WORDS)
    def forward(self, text):
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.blocks(self.words(text) + self.places(places)))
model = Model().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
text = torch.randint(WORDS, (16, LENGTH), device=DEVICE)
def train():
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, WORDS), text[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()
def answer():
    made = text[:1, :8]
    with torch.no_grad():
        for _ in range(random.randint(4, 32)):
            word = model(made)[:, -1].argmax(-1, keepdim=True)
            made = torch.cat([made, word], dim=1)
    return made.shape[1] - 8
def go_on(work, seconds):
    begun, done = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        done += work()
        torch.cuda.synchronize()
    return done / (time.monotonic() - begun)
def rate(work):
    go_on(work, SETTLING)
    return go_on(work, SECONDS)
def busy(work, times):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            work()
            torch.cuda.synchronize()
    spans = sorted((event.time_range.start, event.time_range.end) for event in seen.events()
                   if event.device_type.name == "CUDA")
    union, end = 0, 0
    for begun, ended in spans:
        union += max(0, ended - max(begun, end))
        end = max(end, ended)
    return union / 1e6 / times
first = float(train())
steps = rate(lambda: train() is not None)
try:
    each = busy(train, 20)
except Exception:
    each = None  # no CUPTI here, or it may not be used
model.eval()
words = rate(answer)
print(json.dumps({{"steps": steps, "words": words, "first": first, "last": float(train()),
                  "each": each}}))
"""


def run(report):
    if importlib.util.find_spec("torch") is None:
        report.missing("PyTorch", "no such Python package: torch")
        return
    if cuda.simulated():
        report.missing("PyTorch", "the simulated driver does not serve the CUDA runtime")
        return
    if not cuda.has_room(report, 8 << 30):
        return
    found = {}
    for way, quota in WAYS.items():
        if reports.seconds_left() < 20:
            report.missing(way, "no time was left")
            continue
        seen = shimmed.answer(quota, shimmed.python(GPT), SECONDS)
        if isinstance(seen, str) and quota is None:
            report.missing("PyTorch", f"it does not run without a quota either: {seen}")
            return
        if isinstance(seen, str):
            report.guarantee(f"{way}: runs", False, seen)
            continue
        found[way] = seen
        report.figure(f"{way}: training", seen["steps"], "steps/s")
        report.figure(f"{way}: answering", seen["words"], "words/s")
        if quota is None and seen["each"]:
            percent = 100 * seen["each"] * seen["steps"]
            report.figure("training alone keeps the device busy for", percent, "%")
    for title, held, detail in evaluate(found):
        report.guarantee(title, held, detail)


def evaluate(found):
    """Return (title, held, detail), given what each way of WAYS printed."""
    bare = found["without the shim"]
    whole = min(1.0, bare["each"] * bare["steps"]) if bare["each"] else 1.0
    guarantees = []
    for way, seen in found.items():
        guarantees.append(
            (f"{way}: the model learns", seen["last"] < seen["first"],
             f"loss {seen['first']:.3f}, then {seen['last']:.3f}"),
        )  # fmt: skip
        if way in SHARES:
            had = 100 * whole * seen["steps"] / bare["steps"]
            guarantees += [
                (f"{way}: training is not over its share", had <= SHARES[way] + POINTS,
                 f"{had:.1f} percent of the device's time"),
                (f"{way}: training has its share", had >= SHARES[way] - POINTS,
                 f"{had:.1f} percent of the device's time"),
            ]  # fmt: skip
    return guarantees
