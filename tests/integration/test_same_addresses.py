"""Rows become the same input of a stage in Spark and in Python: where small epochs run several
stages in one task, Python says what otherwise Spark says. Keys of every type and value.

`JET_PROPERTY_EXAMPLES` says how many tables there are; each has some hundreds of rows.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet import Pipeline, State, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.core.partition import partition_of_key
from dagster_jet.dag import ItemProcessor
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN
from dagster_jet.operators.partials.lists import TopValues
from dagster_jet.operators.partials.sketches import HllSketch, KllSketch
from dagster_jet.operators.rows.hashes import is_hashable, key_hashes
from dagster_jet.operators.user.python_rows import row_dicts
from dagster_jet.pipeline import Stage
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = max(2, int(os.environ.get("JET_PROPERTY_EXAMPLES", "50")) // 25)
ROWS = 300
PARTITIONS = 271

Draw = Callable[[random.Random], Any]


def bits(text: str, type: str) -> Any:
    return np.frombuffer(bytes.fromhex(text), type)[0]


def whole(width: int) -> Draw:
    edges = (0, 1, -1, 2 ** (width - 1) - 1, -(2 ** (width - 1)))
    return lambda rng: rng.choice((*edges, rng.randrange(-9, 9)))


def fraction(type: str, nans: Sequence[str]) -> Draw:
    odd = (0.0, -0.0, 0.5, -1.5, float("inf"), float("-inf"), 5e-324, 1e-45)
    return lambda rng: rng.choice((*odd, *(bits(nan, type) for nan in nans)))


_LETTERS = ("a", "Z", "é", "e\u0301", "\u212b", "Å", "ß", "日", "\U0001f600", "\0", " ", "\ufeff")


def text(rng: random.Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.choice((0, 1, 1, 1, 2, 5, 40))))


def some_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 70)))


def days(rng: random.Random) -> int:
    return rng.choice((0, -1, 1, -719_162, 2_932_896, rng.randrange(-99, 99)))


def micros(rng: random.Random) -> int:
    return rng.choice((0, -1, 1, -1_000, 999, -62_135_596_800_000_000, 253_402_300_799_999_999,
                       rng.randrange(-(10**8), 10**8)))  # fmt: skip


def number(precision: int, scale: int) -> Draw:
    def drawn(rng: random.Random) -> Decimal:
        digits = rng.choice((0, 1, 128, 10**precision - 1, rng.randrange(10**precision)))
        return Decimal(rng.choice((1, -1)) * digits).scaleb(-scale, Context(prec=40))

    return drawn


KEYS: Mapping[str, tuple[pa.DataType, Draw]] = {
    "boolean": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "tinyint": (pa.int8(), whole(8)),
    "smallint": (pa.int16(), whole(16)),
    "int": (pa.int32(), whole(32)),
    "bigint": (pa.int64(), whole(64)),
    "float": (pa.float32(), fraction("<f4", ("0000c07f", "0100c0ff", "0100807f"))),
    "double": (pa.float64(), fraction("<f8", ("000000000000f87f", "010000000000f8ff"))),
    "string": (pa.string(), text),
    "binary": (pa.binary(), some_bytes),
    "date": (pa.date32(), days),
    "timestamp": (pa.timestamp("us", "UTC"), micros),
    "timestamp_ntz": (pa.timestamp("us"), micros),
    "decimal(9,2)": (pa.decimal128(9, 2), number(9, 2)),
    "decimal(18,0)": (pa.decimal128(18, 0), number(18, 0)),
    "decimal(19,0)": (pa.decimal128(19, 0), number(19, 0)),
    "decimal(38,38)": (pa.decimal128(38, 38), number(38, 38)),
}


def column(rng: random.Random, type: str, rows: int) -> pa.Array:
    kind, draw = KEYS[type]
    values = [None if rng.random() < 0.1 else draw(rng) for _ in range(rows)]
    if pa.types.is_floating(kind):  # pa.array would make one NaN of all
        data = np.array([0.0 if v is None else v for v in values], kind.to_pandas_dtype())
        return pa.array(data, kind, mask=np.array([v is None for v in values]))
    if pa.types.is_temporal(kind):
        width = pa.int32() if pa.types.is_date(kind) else pa.int64()
        return pa.array(values, width).cast(kind)
    return pa.array(values, kind)


def tables(tmp_path: Path, kind: str) -> Iterator[tuple[random.Random, Path]]:
    for number in range(TABLES):
        yield random.Random(f"{kind} {number}"), tmp_path / f"{number}.parquet"


# --- hashes --------------------------------------------------------------------------------------


def test_keys_have_one_hash(spark: SparkSession, tmp_path: Path) -> None:
    """One by one, all together, as a processor hashes them, and as Python values."""
    for rng, path in tables(tmp_path, "hashes"):
        types = list(KEYS)
        rng.shuffle(types)
        schema = {f"k{place}": type for place, type in enumerate(types)}
        made = pa.table({name: column(rng, type, ROWS) for name, type in schema.items()})
        pq.write_table(made, path, store_schema=False)
        frame = spark.read.schema(", ".join(f"{n} {t}" for n, t in schema.items())).parquet(
            str(path)
        )
        some = rng.sample(list(schema), 3)
        wide = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}
        hashed = {
            **{name: f"xxhash64({name})" for name in schema},
            **{f"{name} wide": f"xxhash64(cast({name} AS {wide.get(type, type)}))"
               for name, type in schema.items()},
            "some": f"xxhash64({', '.join(some)})",
            "all": f"xxhash64({', '.join(schema)})",
        }  # fmt: skip
        there = frame.selectExpr(*[f"{sql} AS `{name}`" for name, sql in hashed.items()]).toArrow()
        rows = frame.toArrow()
        assert all(is_hashable(field.type) for field in rows.schema)
        columns = {name: [rows[name]] for name in schema}
        columns |= {"some": [rows[name] for name in some], "all": rows.columns}
        for name, given in columns.items():
            assert key_hashes(given, ROWS).tolist() == there[name].to_pylist(), schema.get(name)
        for name, type in schema.items():
            expected = there[f"{name} wide"].to_pylist()
            assert key_hashes([rows[name]], ROWS, wide=True).tolist() == expected, type
            if not type.startswith("decimal"):  # Python's know no scale
                own = [row[name] for row in row_dicts(rows.select([name]))]
                found = [partition_of_key(value, PARTITIONS) for value in own]
                assert found == [hash % PARTITIONS for hash in expected], type


def test_a_text_that_is_no_utf_8_has_a_hash(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("cast(x'61eda08062ff' AS string) AS k")
    (row,) = frame.selectExpr("xxhash64(k) AS h").collect()
    assert key_hashes([frame.toArrow()["k"]], 1).tolist() == [row.h]


# --- what a stage takes --------------------------------------------------------------------------


class Silent(ItemProcessor):
    def process_item(self, ordinal: int, item: object) -> bool:
        return True


def stages(rows: Stage, keys: Mapping[str, str], others: Sequence[str]) -> Iterator[Stage]:
    """One of every kind, over every aggregate."""
    aggregates: dict[str, agg.Aggregate] = {"n": agg.count()}
    for name in others:
        aggregates |= {
            f"n_{name}": agg.count(name),
            f"low_{name}": agg.min(name),
            f"high_{name}": agg.max(name),
            f"first_{name}": agg.first(name),
            f"last_{name}": agg.last(name),
            f"distinct_{name}": agg.count_distinct(name),
            f"about_{name}": agg.approx_count_distinct(name),
            f"list_{name}": agg.collect_list(name),
            f"top_{name}": agg.top_n(2, name),
            f"least_{name}": agg.top_n(2, name, smallest=True),
        }
    for name in ("v", "i", "x"):
        aggregates |= {f"sum_{name}": agg.sum(name), f"mean_{name}": agg.mean(name),
                       f"median_{name}": agg.quantile(name, 0.5)}  # fmt: skip
    aggregates["own"] = agg.custom(
        list, lambda seen, row: [*seen, row["v"]], list.__add__, str, columns=["v"],
        result_type="string",
    )  # fmt: skip
    keyed = rows.group_by(*keys)
    sizes = windows.sliding("3 seconds", "1 second"), windows.session("2 seconds")
    for number, window in enumerate(sizes):
        yield keyed.window(window).aggregate(name=f"window {number}", **aggregates)
    yield keyed.rolling_aggregate(name="totals", ttl=None, **aggregates)
    yield rows.deduplicate(on=list(keys), within="1 second", name="first")

    def seen(state: State[int], row: dict[str, Any]) -> None:
        return None

    yield keyed.map_stateful(seen, create=int, output_schema="n long", name="mapped")
    if not any(type.startswith("decimal") for type in keys.values()):
        yield keyed.apply_processor(Silent, output_schema="n long", name="processed")


def comparable(aggregation: Aggregation | None, table: pa.Table) -> Counter[str]:
    """Rows, of which sets are sorted, and sketches and sums of fractions are what they say."""
    partials = {} if aggregation is None else dict(aggregation.partials)
    if aggregation is not None:
        table = aggregation.admit(table)
    columns = []
    for name in table.column_names:
        values, partial = table.column(name).to_pylist(), partials.get(name)
        if isinstance(partial, HllSketch):
            values = [value and partial.estimate(value) for value in values]
        elif isinstance(partial, KllSketch):
            values = [value and partial.quantile(value, 0.5) for value in values]
        elif isinstance(partial, TopValues):
            pass  # in order
        elif pa.types.is_list(table.schema.field(name).type):
            values = [sorted(map(repr, value)) for value in values]
        elif name == "__sum(x)":
            values = [value if value is None else f"{value:.9g}" for value in values]
        columns.append(values)
    return Counter(repr(row) for row in zip(*columns, strict=True))


def test_a_stage_is_given_the_same(spark: SparkSession, tmp_path: Path) -> None:
    taken: Counter[str] = Counter()
    for rng, path in tables(tmp_path, "stages"):
        keys = {f"k{n}": rng.choice(list(KEYS)) for n in range(rng.randrange(3))}
        keys["k"] = rng.choice(("string", "bigint", "date"))
        others = {f"o{n}": rng.choice(list(KEYS)) for n in range(2)}
        time = rng.choice(("timestamp", "bigint"))
        schema = {**keys, **others, "ts": time, "v": "bigint", "i": "int", "x": "double"}
        arrays = {name: column(rng, type, ROWS) for name, type in schema.items()}
        moments = [rng.randrange(-9_000, 9_000) for _ in range(ROWS)]
        is_time = time == "timestamp"
        units = [ms * 1_000 + rng.randrange(1_000) for ms in moments] if is_time else moments
        arrays["ts"] = pa.array(units, pa.int64()).cast(KEYS[time][0])
        arrays["v"] = pa.array([rng.choice((None, 1, -7, 2**40)) for _ in range(ROWS)], pa.int64())
        arrays["x"] = pa.array([rng.choice((None, 0.1, -2.5, 1e9)) for _ in range(ROWS)])
        pq.write_table(pa.table(arrays), path, store_schema=False)
        ddl = ", ".join(f"{name} {type}" for name, type in schema.items())
        p = Pipeline("addressed")
        source = sources.files(str(tmp_path), format="parquet", schema=ddl)
        rows = p.read_from(source, name="rows").with_timestamps("ts")
        for number, stage in enumerate(stages(rows, keys, list(others))):
            stage.write_to(sinks.files(f"{tmp_path}/out{number}", format="json"), name=f"o{number}")
        plan = analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, PARTITIONS)
        frame = spark.read.schema(ddl).parquet(str(path))
        given = frame.toArrow()
        for name, wiring in plan.stages.items():
            (shape,), (own,) = wiring.plan.shapes, wiring.plan.inputs
            if not own.can_take(given.schema):
                continue
            taken[name] += 1
            there = shape(frame).toArrow()
            here, late = own.shape(given, None)
            assert late == 0 and {f.name: f.type for f in here.schema} == {
                f.name: f.type for f in there.schema.remove_metadata()
                if f.name in here.schema.names
            }, f"{name}: {ddl}"  # fmt: skip
            stage_of = own.first_stage
            aggregation = None if stage_of is None else stage_of.aggregation
            expected = comparable(aggregation, there.select(here.column_names))
            found = comparable(aggregation, here)
            assert found == expected, f"{name}: {ddl}\n{found - expected}\n{expected - found}"
            assert {PARTITION_COLUMN, HASH_COLUMN} & set(here.column_names)
    assert taken["first"] == TABLES and taken["processed"], taken
