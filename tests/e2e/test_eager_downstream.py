"""docs/examples/eager_downstream.py: what automation makes of a stream. Spark."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest

from dagster_jet.spark.cluster.session import open_session

from .tiny import SPARK

REPOSITORY = Path(__file__).parents[2]

# Dagster's own way to ask what automation would do calls something of its own that is beta.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `include_sources`")


def example() -> ModuleType:
    path = REPOSITORY / "docs" / "examples" / "eager_downstream.py"
    spec = importlib.util.spec_from_file_location("eager_downstream", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Daemon:
    """Asks what automation wants since it was last asked, and runs it."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions, self.instance, self.cursor = definitions, instance, None

    def carries_out(self) -> int:
        answer = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self.cursor
        )
        self.cursor = answer.cursor
        if answer.total_requested:
            job = self.definitions.resolve_implicit_global_asset_job_def()
            key = dg.AssetKey("best_customers")
            assert job.execute_in_process(instance=self.instance, asset_selection=[key]).success
        return answer.total_requested

    def stream(self) -> None:
        """A run of the stream that reads what is there."""
        job = self.definitions.resolve_job_def("shop_job")
        config = {"ops": {"shop": {"config": {"until": "drained"}}}}
        assert job.execute_in_process(instance=self.instance, run_config=config).success


def put(folder: Path, number: int, customer: str, *eur: float) -> None:
    lines = [json.dumps({"customer": customer, "eur": each}) for each in eur]
    (folder / "in").mkdir(exist_ok=True)
    staged = folder / "staged"
    staged.write_text("\n".join(lines) + "\n", encoding="utf-8")
    staged.rename(folder / "in" / f"{number}.json")


def test_it_runs_once_per_new_rows_and_not_because_of_restarts(tmp_path: Path) -> None:
    open_session(SPARK)  # the example runs on whatever Spark its process has
    definitions = example().definitions(str(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        daemon = Daemon(definitions, instance)
        assert daemon.carries_out() == 0, "nothing is there yet"
        put(tmp_path, 0, "ann", 3.0, -1.0, 4.0)
        daemon.stream()
        assert daemon.carries_out() == 1
        assert json.loads((tmp_path / "best_customers.json").read_text()) == {"ann": 7.0}
        assert daemon.carries_out() == 0, "once"
        for _ in range(2):
            daemon.stream()
            assert daemon.carries_out() == 0, "a restart is no news"
        put(tmp_path, 1, "bob", 9.0)
        daemon.stream()
        assert daemon.carries_out() == 1
        assert json.loads((tmp_path / "best_customers.json").read_text()) == {
            "ann": 7.0,
            "bob": 9.0,
        }
