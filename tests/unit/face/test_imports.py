"""Loading the library is cheap: writing a pipeline needs neither Spark, Dagster, nor Arrow."""

import subprocess
import sys

import pytest

HEAVY = (
    "boto3", "dagster", "lmdb", "msgpack", "numpy", "pandas", "pyarrow", "pydantic", "pyspark",
    "xxhash",
)  # fmt: skip

IMPORT = "import dagster_jet"
FACE = "from dagster_jet import Pipeline, aggregates as agg, contract, sinks, sources, windows"
STAGES = f"""
{FACE}

class Numbers(contract.Source):
    def row_schema(self): return "flight string, origin string, at timestamp, delay double"
    def describe(self): return {{"kind": "numbers"}}
    def open(self, job, stage, bad_rows): raise NotImplementedError

class Nowhere(contract.Sink):
    def describe(self): return {{"kind": "nowhere"}}
    takes = render = open_committer = None
    def open_writer(self, transaction): raise NotImplementedError

p = Pipeline("airport_delays")
flights = p.read_from(Numbers(), name="flights").with_timestamps("at", allowed_lag="2 hours")
late = flights.filter("delay > 15", name="late")
grouped = late.group_by("origin")
hourly = grouped.window(windows.tumbling("1 hour")).aggregate(
    n=agg.count(), mean=agg.mean("delay"), worst=agg.max("delay"), name="hourly_delays",
)
grouped.rolling_aggregate(
    top=agg.top_n(3, "delay"), half=agg.quantile("delay", 0.5),
    own=agg.custom(int, max, max, int, columns=["delay"], result_type="bigint"), name="so_far",
).write_to(Nowhere(), name="so_far_out")
late.group_by("origin").map_stateful(
    lambda state, row: None, create=int, output_schema="n int", name="mapped"
)
late.group_by("origin").map_stateful(
    lambda state, rows: (None, None), in_batches=True, state_schema="n int",
    output_schema="n int", name="in_batches",
)
late.apply_processor(object, output_schema="n int", name="processed")
late.join(flights, on="flight", within="1 hour", name="joined")
late.deduplicate(within="1 hour", on="flight", name="once")
hourly.write_to(Nowhere(), name="hourly_out")
p.graph
"""


def loaded_by(code: str) -> set[str]:
    show = f"{code}\nimport sys; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("code", [IMPORT, FACE, STAGES], ids=["import", "face", "stages"])
def test_writing_a_pipeline_loads_nothing_heavy(code):
    assert loaded_by(code) == set()


def test_what_dagster_loads_is_light():
    """Failed before: 71 MB beside Dagster's own, for Spark, Arrow, NumPy and dagster-pyspark."""
    light = {"dagster", "lmdb", "pydantic", "xxhash"}
    assert loaded_by("import dagster_jet.orchestration") == light


def test_the_connectors_of_a_pipeline_start_nothing(tmp_path):
    """Readers and writers are imported with them, and Arrow with those."""
    connected = f"""
{FACE}
sources.files({str(tmp_path)!r}, format="json", schema="k string")
sources.map_journal("prices")
sinks.files({str(tmp_path / "out")!r}, format="json")
sinks.map_entries("prices", key="k")
"""
    assert not loaded_by(connected) & {"boto3", "dagster", "pandas", "pyspark"}


def test_the_help_of_the_command_line_loads_nothing_heavy():
    assert loaded_by("import dagster_jet.cli") <= {"xxhash"}
