"""Settings of a Spark that we start: the same on a cluster, except the files of this machine."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pyspark
import pytest

from dagster_jet.errors import MissingEnvironmentError
from dagster_jet.spark.cluster import jit
from dagster_jet.spark.cluster.class_archive import OPTIONS, ClassArchive
from dagster_jet.spark.cluster.session import open_session, start_jvm, with_defaults
from dagster_jet.spark.tasks import worker_daemon

DAEMON = "spark.python.daemon.module"
CLUSTER, LOCAL = "spark://host:7077", "local[2]"


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    one = ClassArchive(tmp_path, "archive")
    one.hidden.write_bytes(b"classes")
    assert one.publish()
    return one


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_workers_are_forked_from_a_process_with_the_engine(master: str) -> None:
    settings = {"spark.master": master}
    assert with_defaults(settings, None)[DAEMON] == worker_daemon.__name__
    own = {**settings, DAEMON: "another"}
    assert with_defaults(own, None)[DAEMON] == "another"


def test_that_process_cannot_import_files_that_are_sent() -> None:
    settings = {"spark.master": CLUSTER, "spark.submit.pyFiles": "engine.zip"}
    assert with_defaults(settings, None)[DAEMON] == "pyspark.daemon"
    own = {**settings, DAEMON: "another"}
    assert with_defaults(own, None)[DAEMON] == "another"


def test_executors_elsewhere_have_the_compilers_options_and_no_file_of_this_machine(
    archive: ClassArchive,
) -> None:
    driver, executors = (with_defaults({"spark.master": CLUSTER}, archive)[n] for n in OPTIONS)
    assert jit.OPTIONS in driver and str(archive.path) in driver
    assert executors == jit.OPTIONS
    for options in (with_defaults({"spark.master": LOCAL}, archive)[n] for n in OPTIONS):
        assert jit.OPTIONS in options and str(archive.path) in options


def test_an_older_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = (need for need in metadata.requires("dagster-jet") or () if "pyspark" in need)
    assert ">=4.2" in next(needs), "the bound that pip has"
    for older in ("3.5.6", "4.1.0"):
        monkeypatch.setattr(pyspark, "__version__", older)
        with pytest.raises(MissingEnvironmentError, match=f"PySpark 4.2 .*{older} is installed"):
            open_session({})
        with pytest.raises(MissingEnvironmentError, match=f"PySpark 4.2 .*{older} is installed"):
            start_jvm({})  # a standby's first call
