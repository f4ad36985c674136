"""Failures of the operating system that pass: a full disk, a share that does not answer.

The same call may succeed later, and nothing that the caller could do differently would help. What
is not among them (a folder that is gone, a name that is too long) stays wrong until its cause is
removed.
"""

from __future__ import annotations

import errno
import os

DENIED = frozenset({errno.EACCES, errno.EPERM})
"""Where a person corrects the permissions of a place they pass, elsewhere the caller is wrong."""
TRANSIENT = DENIED | frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.EROFS,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOTCONN,
        errno.ENODEV,
        errno.ENXIO,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EREMOTEIO,
    }
)


def is_transient(error: OSError) -> bool:
    """An error that does not say what it is counts as one that passes."""
    return error.errno is None or error.errno in TRANSIENT


TRANSIENT_TEXTS = frozenset(os.strerror(number) for number in TRANSIENT - DENIED - {errno.EAGAIN})
"""How other languages name them, where only a text comes across: those with one meaning."""
