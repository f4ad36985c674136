"""The folder of a file member: where it is made, for whom, and who may have it open."""

import os
import stat
from pathlib import Path

import pytest

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store import FileMember, Store, StoreConfig
from dagster_jet.store.members.folder import file_system_of, refuse_network
from dagster_jet.store.members.folder_users import FolderUsers

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 27 0:40 / /mnt/shared rw,relatime shared:1 - nfs4 server:/export rw,vers=4.2
32 31 0:41 / /mnt/shared/local\\040disk rw - xfs /dev/vdb rw
33 27 0:42 / /mnt/bucket rw - fuse.s3fs s3fs rw
"""


def config(folder: Path) -> StoreConfig:
    return StoreConfig(tuple(f"file://{folder}/{m}" for m in "abc"), partition_count=3)


def test_a_store_whose_disk_is_not_mounted_is_not_begun_anew(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with pytest.raises(StoreUnwritableError, match=f"{disk} does not exist.*mkdir -p {disk}"):
        Store.open(config(disk))
    assert not disk.exists()
    disk.mkdir()
    Store.open(config(disk)).close()  # the first start takes no more than that


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_member_whose_disk_is_not_mounted_is_not_made_anew(
    tmp_path: Path, is_mount_point: bool
) -> None:
    with Store.open(config(tmp_path)) as store:
        store.map("m").put_all({store.map("m").key("k"): b"v"})
    mounted, place = tmp_path / "mounted", tmp_path / "b"
    place.rename(mounted)
    if is_mount_point:
        place.mkdir()
    with Store.open(config(tmp_path)) as store:
        assert [m.reachable for m in store.status().members] == [True, False, True]
        with pytest.raises(StoreUnavailableError, match="/b"):
            store.map("m").put_all({store.map("m").key(str(n)): b"v" for n in range(9)})
    assert not any(place.iterdir()) if is_mount_point else not place.exists()
    if is_mount_point:
        place.rmdir()
    mounted.rename(place)
    with Store.open(config(tmp_path)) as store:
        assert store.is_safe()


def test_folders_and_files_are_for_their_user_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        member = FileMember(str(tmp_path / "a"))
        member.create()
        member.put_many({b"large": bytes(2**21), b"small": b""})
        member.close()
    finally:
        os.umask(umask)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a", *tmp_path.rglob("a/**/*"))}
    assert len(modes) >= 8
    assert {p: m for p, m in modes.items() if m != (0o700 if p.is_dir() else 0o600)} == {}


def test_files_that_an_older_version_left_open_to_all_are_closed_the_folder_is_its_owners(
    tmp_path: Path,
) -> None:
    place = tmp_path / "a"
    place.mkdir(mode=0o755)
    older = FileMember(str(place))
    older.ping()
    older.close()
    for path in place.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    member = FileMember(str(place))
    member.ping()
    member.close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in place.iterdir()} == {0}


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    for folder, kind in (("/mnt/shared/a", "nfs4"), ("/mnt/bucket", "fuse.s3fs")):
        with pytest.raises(StoreUnwritableError, match=rf"file://x is on .*\({kind}\).*redis://"):
            refuse_network(folder, "file://x", MOUNTS)
    for folder, kind in (("/mnt/shared/local disk/a", "xfs"), ("/mnt/sharedless", "ext4")):
        assert file_system_of(folder, MOUNTS) == kind
        refuse_network(folder, "file://x", MOUNTS)
    refuse_network(str(tmp_path), "file://x")


def test_two_pid_namespaces_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a"
    other = FolderUsers(str(place), "boot-other-namespace")
    place.mkdir()
    other.enter("file://x")
    member = FileMember(str(place))
    with pytest.raises(StoreUnwritableError, match=r"another PID namespace.*shareProcessNamespace"):
        member.ping()
    other.leave()  # as when the other container ends
    member.ping()
    with pytest.raises(StoreUnwritableError, match="another PID namespace"):
        other.enter("file://x")
    member.close()
    other.enter("file://x")
    other.leave()


def test_a_ping_writes_and_reads_back(tmp_path: Path) -> None:
    member = FileMember(str(tmp_path))
    member.ping()
    written = (tmp_path / "data.mdb").stat().st_mtime_ns
    member.ping()
    assert (tmp_path / "data.mdb").stat().st_mtime_ns > written
    assert member.list_keys(b"") == member.list_versioned(b"") == []
    member.close()
