"""Folders for scratch: made for one user, refused where somebody else was first."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.errors import ConfigurationError
from dagster_jet.system.scratch import make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Folder with the rights of a temporary one: everybody may write there."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    return place


def test_what_is_made_is_for_its_owner_alone(place: Path) -> None:
    """Failed before: rows lay in folders that everybody could read."""
    before = os.umask(0)
    try:
        for _ in range(2):
            make_private(place / "jet-store" / "job" / "7")
    finally:
        os.umask(before)
    made = [place / "jet-store", place / "jet-store/job", place / "jet-store/job/7"]
    assert list(map(mode, made)) == [0o700] * 3
    assert mode(place) == 0o1777


def test_a_folder_that_others_may_write_to_is_closed(place: Path) -> None:
    (place / "jet-store").mkdir()
    (place / "jet-store").chmod(0o775)
    make_private(place / "jet-store" / "job" / "7")
    assert mode(place / "jet-store") == 0o700


@pytest.mark.parametrize("level", ["jet-store", "jet-store/job", "jet-store/job/7"])
def test_what_somebody_else_made_is_refused(
    place: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: a name that can be guessed, made first by another user, was used as it was."""
    (place / level).mkdir(parents=True)
    theirs, lstat = place / level, Path.lstat

    def as_another_users(path: Path) -> Any:
        found = lstat(path)
        if path != theirs:
            return found
        return os.stat_result([*found[:4], os.geteuid() + 1, *found[5:]])

    monkeypatch.setattr(Path, "lstat", as_another_users)
    with pytest.raises(ConfigurationError, match=r"belongs to the user .*another work_dir"):
        make_private(place / "jet-store" / "job" / "7")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_or_a_file_in_the_way_is_refused(place: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    if kind == "link":
        (place / "jet-store").symlink_to(target)
    else:
        (place / "jet-store").touch()
    with pytest.raises(ConfigurationError, match=r"work_dir: .* is (a link|no folder)"):
        make_private(place / "jet-store" / "job" / "7")
    assert not list(target.iterdir())
