"""The processes that have a folder open, all in one PID namespace.

LMDB identifies its readers by their process ids. Two containers with separate PID namespaces both
have a process 1: each takes the other's readers for dead or for its own, and pages that are still
being read are overwritten. So every process holds a shared lock on a file named after its
namespace. A process that opens the folder checks that no file of another namespace is locked. A
lock ends with its process; an unlocked file is from a former container.
"""

from __future__ import annotations

import fcntl
import os

from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store.members.folder import FILE_MODE, FOLDER_MODE

_FOLDER = "users"


class FolderUsers:
    """This process as a user of a folder.

    A forked child must not inherit the open file: ``leave`` before a fork.

    Args:
        folder: the member's folder.
        namespace: the PID namespace of this process; None: determine it.
    """

    def __init__(self, folder: str, namespace: str | None = None) -> None:
        self._folder = os.path.join(folder, _FOLDER)
        self._namespace = namespace or own_namespace()
        self._descriptor: int | None = None

    def enter(self, member_id: str) -> None:
        """Register this process as a user of the folder. Only one process at a time may call it.

        Raises:
            StoreUnwritableError: the folder is in use in another namespace.
            OSError: the folder cannot be written.
        """
        if self._descriptor is not None:
            return
        os.makedirs(self._folder, FOLDER_MODE, exist_ok=True)
        for name in os.listdir(self._folder):
            if name != self._namespace and not self._is_left(os.path.join(self._folder, name)):
                raise StoreUnwritableError(
                    f"the store member {member_id} is in use by processes in another PID "
                    "namespace (another container): processes in different namespaces do not see "
                    "each other's readers, and would overwrite pages that are being read.",
                    cure="Let the containers share one PID namespace (shareProcessNamespace, "
                    "--pid), give each a folder of its own, or use a redis:// member.",
                )
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        path = os.path.join(self._folder, self._namespace)
        self._descriptor = os.open(path, flags, FILE_MODE)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Stop using the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_left(self, path: str) -> bool:
        """Remove another namespace's file unless it is locked; return False if it is."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True


def own_namespace() -> str:
    """Return a name of this process's PID namespace, unique on this host since it booted."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
            boot = boot_id.read().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "host"  # not Linux: there are no namespaces
