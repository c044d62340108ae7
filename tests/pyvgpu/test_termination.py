"""Termination signals end a process, whichever of its threads the kernel delivers them to."""

import subprocess
import sys

import pytest
from waiting import WHOLE

PROGRAM = """
import signal, sys, threading, time
from pyvgpu.cli import termination
stop = threading.Event()
termination.on_signals(stop.set)
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
number, thread = getattr(signal, sys.argv[1]), sys.argv[2]
def send():
    time.sleep(0.1)  # until the main thread waits
    target = other if thread == "other" else threading.main_thread()
    signal.pthread_kill(target.ident, number)
threading.Thread(target=send).start()
stop.wait()
print("ended")
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("thread", ["main", "other"])
def test_a_signal_ends_the_process(number, thread):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, number, thread],
        capture_output=True,
        text=True,
        timeout=WHOLE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_many_concurrent_signals_end_the_process():
    source = """
import os, signal, threading
from pyvgpu.cli import termination
calls = threading.Semaphore(0)
termination.on_signals(calls.release)
for _ in range(1000):
    os.kill(os.getpid(), signal.SIGTERM)
calls.acquire()
print("ended")
"""
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WHOLE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
