"""A benchmark that is told to end leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import sys, time
from benchmarks.process import end_on_sigterm
end_on_sigterm()
try:
    print("runs", flush=True)
    time.sleep(60)
finally:
    print("cleans up", flush=True)
    sys.stdin.readline()
    print("has cleaned up", flush=True)
"""


def test_a_second_sigterm_does_not_break_the_clean_up_off() -> None:
    """Failed before: the engine's process outlived the benchmark."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    for said in ("runs", "cleans up"):
        assert process.stdout.readline().strip() == said
        process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate("\n", timeout=30)
    assert rest.strip() == "has cleaned up" and process.returncode == 143
