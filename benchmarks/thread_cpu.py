"""CPU by thread of the JVM and by kind of process: load on the machine hardly disturbs it."""

from __future__ import annotations

from pathlib import Path

import psutil

_TICKS_PER_S = 100.0
_KINDS = {
    "Executor task": "executor tasks",
    "C1 Compiler": "JIT",
    "C2 Compiler": "JIT",
    "G1": "garbage collection",
    "GC Thread": "garbage collection",
    "VM Thread": "garbage collection",
    "Thread-": "driver calls (py4j, Catalyst, job submission)",
    "dag-scheduler": "scheduler",
    "spark-listener": "listeners",
}


def cpu_ms() -> dict[str, float]:
    """CPU-milliseconds so far of this process's tree, by what it was spent on."""
    me = psutil.Process()
    times = me.cpu_times()
    spent = {"Python driver": 1000 * (times.user + times.system)}
    for child in me.children(recursive=True):
        try:
            if "java" in child.name():
                _add_threads(child.pid, spent)
            else:
                total = sum(child.cpu_times()[:4])
                spent["Python workers"] = spent.get("Python workers", 0.0) + 1000 * total
        except (psutil.Error, OSError):
            continue
    return spent


def _add_threads(pid: int, spent: dict[str, float]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "stat").read_text()
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        kind = next((k for start, k in _KINDS.items() if name.startswith(start)), "JVM, others")
        used = 1000 * (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        spent[f"JVM: {kind}"] = spent.get(f"JVM: {kind}", 0.0) + used
