"""Transient failures of the operating system: a full disk, a share that does not answer.

The same call may succeed later, and the caller cannot change anything. All other errors (a missing
folder, a name that is too long) persist until their cause is removed.
"""

from __future__ import annotations

import errno
import os

DENIED = frozenset({errno.EACCES, errno.EPERM})
"""Transient if an operator may correct a place's permissions; otherwise an error of the caller."""
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
    """Whether the error is transient; an error without a number counts as transient."""
    return error.errno is None or error.errno in TRANSIENT


TRANSIENT_TEXTS = frozenset(os.strerror(number) for number in TRANSIENT - DENIED - {errno.EAGAIN})
"""Texts of the errors with only one meaning, for other languages that pass on only a text."""
