"""Work in a forked child, as PySpark's daemon forks its workers."""

import os
import signal
from collections.abc import Callable


def in_a_fork(work: Callable[[], object]) -> None:
    """Run ``work`` in a forked child; fail if it raises there, or hangs."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
