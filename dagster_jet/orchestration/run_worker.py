"""Run tag that names the processes working on a Dagster run, so that their death can be detected.

A run stays "started" until its end is reported, and the process that would report it dies with the
code server. The tag names the process that runs the job and its parent. With the multiprocess
executor these are the step process and the run worker, which may retry the step. With the
in-process executor they are the run worker and the code server, which reports the worker's death
itself. If both are gone, nobody can continue the run or report its end.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from json import JSONDecodeError

from dagster_jet.system.process import is_alive, pid_scope, start_ticks

_FIRST_PROCESSES = (0, 1)
"""Parents that do not count: the kernel, or the process that adopts orphans."""


@dataclass(frozen=True)
class RunWorker:
    """The process that runs a job and its parent, on one host.

    Attributes:
        run_id: id of the run; a re-execution carries copies of another run's tags.
        host, scope: where the process ids are valid: host name, boot and PID namespace.
        pid, started: the process that runs the job, and its start time in kernel ticks.
        parent_pid, parent_started: its parent process; 0 if there is no parent that counts.
        execution_id: newest execution of the job that the run has started; 0 before the first and
            after the job has ended, because the rest of the run does not concern the job.
        stands_by: Spark is warm, and the run waits until the job is to be taken over.
        definition: of a run that stands by: digest of the pipeline's definition that it has.
        took_over_at_s: when such a run has taken the job over, by its own clock; 0: it has not.
        job: `job_tag` of the streaming job. A run of several pipelines has one tag, and each step
            overwrites it. Empty: written by an older version.
    """

    run_id: str
    host: str
    scope: str
    pid: int
    started: int
    parent_pid: int
    parent_started: int
    execution_id: int = 0
    stands_by: bool = False
    definition: str = ""
    took_over_at_s: float = 0
    job: str = ""

    @classmethod
    def here(cls, run_id: str) -> RunWorker:
        """Returns the entry for this process, working on the given run."""
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
        """Parses a tag; returns None if it is absent, unreadable or copied from another run."""
        if tag is None:
            return None
        try:
            found = cls(**json.loads(tag))
        except (JSONDecodeError, TypeError):
            return None  # written by another program or a newer version
        return found if found.run_id == run_id else None

    def is_of(self, job: str) -> bool:
        """Whether the process may work on the streaming job with this `job_tag`."""
        return self.job in ("", job)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the process is of another host, container or boot, so its liveness is unknown."""
        return self.host != socket.gethostname() or self.scope != pid_scope()

    @property
    def is_dead(self) -> bool:
        """Whether the process that runs the job provably no longer exists; its parent may."""
        return not self.is_elsewhere and not is_alive(self.pid, self.started)

    @property
    def is_gone(self) -> bool:
        """Whether both processes provably no longer exist; False for another host or boot."""
        if not self.is_dead:
            return False
        return not self.parent_pid or not is_alive(self.parent_pid, self.parent_started)
