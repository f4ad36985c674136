"""An engine's committed rows are found by its own log, and each is returned once."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.race.committed import (
    Commits,
    Epochs,
    GrowingFiles,
    SparkLog,
    TriggerFolders,
    VisibleFiles,
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def texts(commits: Commits) -> list[str]:
    return [piece.read().decode() for piece in commits.new()]


def test_an_epoch_counts_once_its_marker_is_there(tmp_path: Path) -> None:
    commits = Epochs(tmp_path)
    assert texts(commits) == []
    write(tmp_path / "a.json", "1\n")
    assert texts(commits) == []
    marker = json.dumps({"files": [{"name": "a.json"}]})
    write(tmp_path / "_epochs" / "0.json", marker)
    assert texts(commits) == ["1\n"]
    assert texts(commits) == []
    assert commits.files() == [tmp_path / "a.json"]


def test_a_compacted_log_of_spark_tells_no_file_again(tmp_path: Path) -> None:
    commits = SparkLog(tmp_path)
    lines = []
    for trigger, name in enumerate(("a.json", "b.json")):
        path = write(tmp_path / name, f"{trigger}\n")
        lines.append(json.dumps({"path": f"file://{path}"}))
    write(tmp_path / "c.json", "of a trigger that was killed\n")
    write(tmp_path / "_spark_metadata" / "8", f"v1\n{lines[0]}\n")
    assert texts(commits) == ["0\n"]
    write(tmp_path / "_spark_metadata" / "9.compact", "\n".join(["v1", *lines]))
    assert texts(commits) == ["1\n"]
    assert sorted(path.name for path in commits.files()) == ["a.json", "b.json"]


def test_a_folder_of_a_trigger_counts_once_it_is_whole(tmp_path: Path) -> None:
    commits = TriggerFolders(tmp_path)
    write(tmp_path / "batch=0" / "part-0.json", "1\n")
    assert texts(commits) == []
    assert commits.files() == []
    write(tmp_path / "batch=0" / "_SUCCESS", "")
    assert texts(commits) == ["1\n"]


def test_a_folder_that_a_trigger_wrote_anew_has_its_new_files(tmp_path: Path) -> None:
    commits = TriggerFolders(tmp_path)
    old = write(tmp_path / "batch=0" / "part-old.json", "1\n")
    write(tmp_path / "batch=0" / "_SUCCESS", "")
    assert texts(commits) == ["1\n"]
    old.unlink()
    new = write(tmp_path / "batch=0" / "part-new.json", "1\n")
    assert commits.files() == [new]


def test_a_hidden_file_of_flink_is_not_committed(tmp_path: Path) -> None:
    commits = VisibleFiles(tmp_path)
    hidden = write(tmp_path / ".part-0.inprogress", "1\n")
    assert texts(commits) == []
    hidden.rename(tmp_path / "part-0")
    assert texts(commits) == ["1\n"]


def test_whole_lines_of_a_growing_file_count(tmp_path: Path) -> None:
    commits = GrowingFiles(tmp_path)
    path = write(tmp_path / "rows", "1\n2")
    assert texts(commits) == ["1\n"]
    assert texts(commits) == []
    write(path, "1\n2\n3\n")
    assert texts(commits) == ["2\n3\n"]


def test_lines_that_a_restart_writes_again_are_not_new(tmp_path: Path) -> None:
    commits = GrowingFiles(tmp_path)
    path = write(tmp_path / "rows", "1\n2\n")
    assert texts(commits) == ["1\n2\n"]
    write(path, "1\n")
    assert texts(commits) == []
    write(path, "1\n2\n3\n")
    assert texts(commits) == ["3\n"]
