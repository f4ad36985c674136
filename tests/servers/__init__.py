"""Real servers for the tests: one of a kind per run, started by the first test that needs it.

`shared_server` is what a kind's own file (`postgres.py`, ...) uses; `python -m tests.servers`
installs what they need, once, before the tests (`make test` does that).
"""

from tests.servers.members import free_port

from .shared import (
    SharedServer,
    ToStart,
    launch,
    own_folder,
    shared_server,
    stop,
    wait_until,
)

__all__ = [
    "SharedServer",
    "ToStart",
    "free_port",
    "launch",
    "own_folder",
    "shared_server",
    "stop",
    "wait_until",
]
