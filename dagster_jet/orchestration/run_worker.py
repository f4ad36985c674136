"""Which process works on a Dagster run, as a tag of the run: so that others can tell that it died.

A run's status says "started" until somebody says otherwise, and who would say it dies with the
code server. The tag has the process that runs the job and the one that started it: with the
multiprocess executor the first is a step's and the second the run worker's, which may have the step
done again; with the in-process executor they are the run worker and the code server, which reports
the worker's death itself. When both are gone nobody is left who could go on, or say that nobody is.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from json import JSONDecodeError

from dagster_jet.system.process import is_alive, pid_scope, start_ticks

_FIRST_PROCESSES = (0, 1)
"""A parent that is none: the kernel, or whatever takes orphans in."""


@dataclass(frozen=True)
class RunWorker:
    """Two processes of one host.

    Attributes:
        run_id: the run; a re-execution has copies of the tags of another.
        host, scope: where the ids are those of processes: a boot and a PID namespace.
        pid, started: the process that runs the job, and its start in the kernel's ticks.
        parent_pid, parent_started: the process that started it; 0 if there is none that counts.
        execution_id: the newest execution of the job that it has begun; 0 before, and once the job
            has ended: whatever else the run does then has nothing to do with the job.
    """

    run_id: str
    host: str
    scope: str
    pid: int
    started: int
    parent_pid: int
    parent_started: int
    execution_id: int = 0

    @classmethod
    def here(cls, run_id: str) -> RunWorker:
        """This process, at work on a run."""
        pid, parent = os.getpid(), os.getppid()
        if parent in _FIRST_PROCESSES:
            parent = 0
        return cls(
            run_id=run_id,
            host=socket.gethostname(),
            scope=pid_scope(),
            pid=pid,
            started=start_ticks(pid) or 0,
            parent_pid=parent,
            parent_started=(start_ticks(parent) or 0) if parent else 0,
        )

    def to_tag(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_tag(cls, tag: str | None, run_id: str) -> RunWorker | None:
        """Return what a tag says of this run; None if it says nothing."""
        if tag is None:
            return None
        try:
            found = cls(**json.loads(tag))
        except (JSONDecodeError, TypeError):
            return None  # somebody else's, or a newer version's
        return found if found.run_id == run_id else None

    @property
    def is_elsewhere(self) -> bool:
        """Nobody can tell from here whether it lives: another host, container or boot."""
        return self.host != socket.gethostname() or self.scope != pid_scope()

    @property
    def is_gone(self) -> bool:
        """Is it proven that neither process exists any more? Never of another host or boot."""
        if self.is_elsewhere:
            return False
        if is_alive(self.pid, self.started):
            return False
        return not self.parent_pid or not is_alive(self.parent_pid, self.parent_started)
