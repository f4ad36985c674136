"""The folder of a file member: created explicitly, on a disk of this host, closed to other users.

A missing folder is more often a disk that is not mounted than a new member. So only
``create_folder`` creates one, and only where its parent folder exists.

Everything created here is readable by this user only: folders 0700, files 0600. The mode of an
existing folder is not changed; the files in it are closed, also those that others made readable.
"""

from __future__ import annotations

import os
import re
import stat

from dagster_jet.errors import StoreUnwritableError
from dagster_jet.system.durable import sync_folder

FOLDER_MODE, FILE_MODE = 0o700, 0o600

_NETWORK = re.compile(
    r"nfs\d*|cifs|smb\w*|ncpfs|afs|ceph|glusterfs|lustre|beegfs|gpfs|gfs2|ocfs2|orangefs|davfs\d?"
    r"|fuse\.(sshfs|ceph\S*|glusterfs|davfs\d?|s3fs|gcsfuse|goofys|rclone|juicefs|blobfuse\d?"
    r"|mount-?s3|mountpoint-s3|moosefs|seaweedfs|smbnetfs|curlftpfs|gvfsd-fuse)"
)
_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def create_folder(folder: str, member_id: str) -> None:
    """Create the folder durably, unless it exists.

    Raises:
        StoreUnwritableError: the parent folder is missing.
        OSError: the folder cannot be created.
    """
    parent = os.path.dirname(folder)
    if not os.path.lexists(parent):
        raise StoreUnwritableError(
            f"the store member {member_id} is not created: the folder {parent} does not exist. "
            "Perhaps its disk is not mounted.",
            cure=f"Mount it; for a new store: mkdir -p {parent}",
        )
    try:
        os.mkdir(folder, FOLDER_MODE)
    except FileExistsError:
        return
    sync_folder(parent)


def close_to_others(folder: str) -> None:
    """Remove the access of other users to this user's entries of the folder."""
    for entry in os.scandir(folder):
        mode, own = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode), _is_own(entry)
        wanted = FOLDER_MODE if entry.is_dir(follow_symlinks=False) else FILE_MODE
        if own and mode & 0o077:
            os.chmod(entry.path, wanted, follow_symlinks=False)


def refuse_network(folder: str, member_id: str, mounts: str | None = None) -> None:
    """Refuse a folder on a network file system: LMDB's locks and shared memory need one host.

    Args:
        folder: the folder to check.
        member_id: for the message.
        mounts: the mounts of this process, in Linux's format; None: read them. If the system
            does not list them, nothing is refused.

    Raises:
        StoreUnwritableError: the folder is on a network file system; names it.
    """
    if mounts is None:
        try:
            with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as listed:
                mounts = listed.read()
        except OSError:
            return
    kind = file_system_of(folder, mounts)
    if _NETWORK.fullmatch(kind):
        raise StoreUnwritableError(
            f"the store member {member_id} is on a network file system ({kind}): its locks do "
            "not hold between hosts, and writes would be lost.",
            cure="Use a folder on a local disk, or a redis://, s3:// or dynamodb:// member.",
        )


def file_system_of(folder: str, mounts: str) -> str:
    """Return the type of the file system of a folder; "" if the mounts do not list it."""
    best, kind = "", ""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        fields = where.split(" ")
        if len(fields) < 5 or not what:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4]).rstrip("/")
        # A later mount at the same point hides the earlier one.
        if f"{folder}/".startswith(f"{point}/") and len(point) >= len(best):
            best, kind = point, what.split(" ")[0]
    return kind


def _is_own(entry: os.DirEntry[str]) -> bool:
    return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
