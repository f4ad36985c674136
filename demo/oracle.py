"""Every output row against a batch recomputation in DuckDB, from the data's own CSV files.

It shares no line with the engine and none with the replayer: event times come from the data's UTC
hours, not from local time; what is a bad row is decided by DuckDB's own JSON functions; outputs
are read only through the sinks' epoch manifests, as a consumer would.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from pipelines.airport_delays.into_lake import (
    BADLY_DELAYED,
    CATALOG,
    HOURLY,
    catalog_options,
)

_FLIGHTS = """
    select carrier, flight::int as flight, origin, dest, dep_delay::double as delay,
           time_hour::timestamptz as hour,
           time_hour::timestamptz + to_minutes(minute::bigint) as "at"
    from read_csv($flights, all_varchar = true, nullstr = 'NA', header = true)
"""

_EXPECTED_HOURLY = """
    select origin, epoch_us(hour) as window_start, epoch_us(hour + interval 1 hour) as window_end,
           count(*) as n, sum(delay) / count(delay) as mean, max(delay) as worst
    from flights group by origin, hour
"""

_GOT_HOURLY = """
    select origin, epoch_us(window_start::timestamptz) as window_start,
           epoch_us(window_end::timestamptz) as window_end, n, mean, worst
    from read_parquet($files)
"""

_EXPECTED_BADLY_DELAYED = """
    select epoch_us(f."at") as "at", a.name as airline, f.carrier, f.flight, f.origin, f.dest,
           f.delay, w.temp::double as temp, w.wind_speed::double as wind_speed,
           w.precip::double as precip, w.visib::double as visib
    from flights f
    left join read_csv($airlines, all_varchar = true, header = true) a on a.carrier = f.carrier
    left join read_csv($weather, all_varchar = true, nullstr = 'NA', header = true) w
        on w.origin = f.origin and w.time_hour::timestamptz = f.hour
    where f.delay > 60
"""

_GOT_BADLY_DELAYED = """
    select epoch_us("at"::timestamptz) as "at", airline, carrier, flight, origin, dest, delay,
           temp, wind_speed, precip, visib
    from read_json($files, format = 'newline_delimited', columns = {
        "at": 'VARCHAR', airline: 'VARCHAR', carrier: 'VARCHAR', flight: 'INT', origin: 'VARCHAR',
        dest: 'VARCHAR', delay: 'DOUBLE', temp: 'DOUBLE', wind_speed: 'DOUBLE',
        precip: 'DOUBLE', visib: 'DOUBLE'})
"""

_GOT_HOURLY_DELTA = _GOT_HOURLY.replace("($files)", "($files, hive_partitioning = true)")

_GOT_BADLY_DELAYED_ICEBERG = """
    select epoch_us("at"::timestamptz) as "at", airline, carrier, flight, origin, dest, delay,
           temp, wind_speed, precip, visib
    from read_parquet($files)
"""

_GOT_HOURLY_TABLE = """
    select origin, epoch_us(window_start::timestamptz) as window_start,
           epoch_us(window_end::timestamptz) as window_end, n::bigint as n, mean::double as mean,
           worst::double as worst
    from read_csv($files, all_varchar = true, header = true)
"""

_GOT_BADLY_DELAYED_TABLE = """
    select epoch_us("at"::timestamptz) as "at", airline, carrier, flight::int as flight, origin,
           dest, delay::double as delay, temp::double as temp, wind_speed::double as wind_speed,
           precip::double as precip, visib::double as visib
    from read_csv($files, all_varchar = true, header = true)
"""

_LINES = """
    select filename, line from read_csv($inbox, columns = {line: 'VARCHAR'}, delim = '\x01',
        quote = '', escape = '', header = false, auto_detect = false, filename = true)
"""

_MESSAGES = """
    select position as filename, line from read_json($messages, format = 'newline_delimited',
        columns = {position: 'VARCHAR', line: 'VARCHAR'})
"""

_EXPECTED_BAD_ROWS = """
    select 'flights' as source, filename as file, line as raw from lines
    where not json_valid(line)
       or coalesce(json_type(line, '$.delay'), 'NULL')
           not in ('NULL', 'DOUBLE', 'UBIGINT', 'BIGINT')
       or json_type(line, '$.flight') not in ('UBIGINT', 'BIGINT')
       or try_cast(json_extract_string(line, '$.at') as timestamptz) is null
"""

_GOT_BAD_ROWS = r"""
    select source, regexp_extract(url_decode(position), '(/[^/:][^:]*\.json)', 1) as file, raw
    from read_json($files, format = 'newline_delimited', columns = {
        source: 'VARCHAR', position: 'VARCHAR', reason: 'VARCHAR', raw: 'VARCHAR'})
"""

_GOT_BAD_MESSAGES = """
    select source, position as file, raw
    from read_json($files, format = 'newline_delimited', columns = {
        source: 'VARCHAR', position: 'VARCHAR', reason: 'VARCHAR', raw: 'VARCHAR'})
"""


@dataclass(frozen=True)
class OutputVerdict:
    """How one output compares, as multisets."""

    name: str
    expected: int
    found: int
    missing: int
    duplicates: int
    wrong: int
    stray_files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        counts = self.missing + self.duplicates + self.wrong
        return counts == 0 and not self.stray_files and not self.problems


@dataclass(frozen=True)
class Verdict:
    """All outputs, and what the input was."""

    flights: int
    bad_lines: int
    outputs: tuple[OutputVerdict, ...] = field(default_factory=tuple)

    @property
    def is_exact(self) -> bool:
        return all(output.is_exact for output in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_outputs(csv_folder: Path, inbox: Path, out: Path) -> Verdict:
    """Recompute all outputs from the data and compare every row.

    Args:
        csv_folder: the data's CSV files as published.
        inbox: what the job read.
        out: the folder of the job's outputs.
    """
    with duckdb.connect() as db:
        _table(db, "lines", _LINES, inbox=str(inbox / "*.json"))
        return _verdict(
            db,
            csv_folder,
            hourly=(_GOT_HOURLY, _found_in(out / "hourly")),
            badly_delayed=(_GOT_BADLY_DELAYED, _found_in(out / "badly_delayed")),
            bad_rows=(_GOT_BAD_ROWS, _found_in(out / "bad_rows")),
        )


def check_kafka_outputs(csv_folder: Path, messages: Path, tables: Path, out: Path) -> Verdict:
    """The same for outputs in tables, one of them in files, too.

    Args:
        csv_folder: as above.
        messages: what is in the topic, as JSON lines of position and line.
        tables: a CSV file of each table, as PostgreSQL's COPY writes it.
        out: the folder of the job's outputs in files.
    """
    with duckdb.connect() as db:
        _table(db, "lines", _MESSAGES, messages=str(messages))
        return _verdict(
            db,
            csv_folder,
            hourly=(_GOT_HOURLY_TABLE, _Found([str(tables / "hourly_delays.csv")])),
            hourly_files=(_GOT_HOURLY, _found_in(out / "hourly")),
            badly_delayed=(_GOT_BADLY_DELAYED_TABLE, _Found([str(tables / "badly_delayed.csv")])),
            bad_rows=(_GOT_BAD_MESSAGES, _found_in(out / "bad_rows")),
        )


def check_lake_outputs(csv_folder: Path, inbox: Path, lake: Path, out: Path) -> Verdict:
    """The same for tables of a lake. Their metadata name the files; DuckDB reads these.

    Args:
        csv_folder: as above.
        inbox: what the job read.
        lake: the folder of the tables.
        out: the folder of the job's outputs in files.
    """
    with duckdb.connect() as db:
        _table(db, "lines", _LINES, inbox=str(inbox / "*.json"))
        return _verdict(
            db,
            csv_folder,
            hourly=(_GOT_HOURLY_DELTA, _Found(DeltaTable(lake / HOURLY).file_uris())),
            badly_delayed=(_GOT_BADLY_DELAYED_ICEBERG, _Found(_iceberg_files(lake))),
            bad_rows=(_GOT_BAD_ROWS, _found_in(out / "bad_rows")),
        )


def _iceberg_files(lake: Path) -> list[str]:
    with closing(load_catalog(CATALOG, **catalog_options(str(lake)))) as catalog:
        tasks = catalog.load_table(BADLY_DELAYED).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]


@dataclass(frozen=True)
class _Found:
    """An output, as it was found."""

    files: list[str]
    stray_files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def _verdict(db: Any, csv_folder: Path, **outputs: tuple[str, _Found]) -> Verdict:
    """Of `lines`, which is in the database already; `hourly_files` is to be what `hourly` is."""
    db.execute("set timezone = 'UTC'")
    _table(db, "flights", _FLIGHTS, flights=str(csv_folder / "flights.csv"))
    _table(db, "expected_hourly", _EXPECTED_HOURLY)
    db.execute("create view expected_hourly_files as select * from expected_hourly")
    _table(
        db,
        "expected_badly_delayed",
        _EXPECTED_BADLY_DELAYED,
        airlines=str(csv_folder / "airlines.csv"),
        weather=str(csv_folder / "weather.csv"),
    )
    _table(db, "expected_bad_rows", _EXPECTED_BAD_ROWS)
    return Verdict(
        flights=_count(db, "flights"),
        bad_lines=_count(db, "expected_bad_rows"),
        outputs=tuple(_compare(db, name, *output) for name, output in outputs.items()),
    )


def _compare(db: Any, name: str, query: str, found: _Found) -> OutputVerdict:
    expected, got = f"expected_{name}", f"got_{name}"
    if found.files:
        _table(db, got, query, files=found.files)
    else:
        db.execute(f"create table {got} as select * from {expected} limit 0")
    db.execute(f"create table extra as (select * from {got} except all select * from {expected})")
    db.execute(f"create table missing as (select * from {expected} except all select * from {got})")
    surplus = _count(db, "extra")
    # A surplus row that is also expected came twice; any other should not be there at all.
    duplicates = _scalar(
        db,
        f"select count(*) from extra where exists (select 1 from {expected} "
        f"where {expected} is not distinct from extra)",
    )
    missing = _count(db, "missing")
    verdict = OutputVerdict(
        name=name,
        expected=_count(db, expected),
        found=_count(db, got),
        missing=missing,
        duplicates=duplicates,
        wrong=surplus - duplicates,
        stray_files=found.stray_files,
        problems=found.problems,
    )
    db.execute("drop table extra")
    db.execute("drop table missing")
    return verdict


def _found_in(folder: Path) -> _Found:
    files, problems = _committed_files(folder)
    return _Found(files, _stray_files(folder, files), problems)


def _committed_files(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return what the epoch manifests list, and what is wrong with it."""
    files: list[str] = []
    problems: list[str] = []
    for manifest in sorted((folder / "_epochs").glob("[!.]*.json")):
        for entry in json.loads(manifest.read_text(encoding="utf-8"))["files"]:
            path = folder / entry["name"]
            if not path.exists():
                problems.append(f"{manifest.name} lists {path.name}, which is not there")
            elif path.stat().st_size != entry["bytes"]:
                problems.append(f"{path.name} has another size than {manifest.name} says")
            elif str(path) in files:
                problems.append(f"{path.name} is in two manifests")
            else:
                files.append(str(path))
    return files, tuple(problems)


def _stray_files(folder: Path, committed: list[str]) -> tuple[str, ...]:
    """Return visible files that no manifest lists: a reader of the folder would see them."""
    hidden = (".", "_")
    return tuple(
        sorted(
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file()
            and not any(part.startswith(hidden) for part in path.relative_to(folder).parts)
            and str(path) not in set(committed)
        )
    )


def _table(db: Any, name: str, query: str, **parameters: Any) -> None:
    for key, value in parameters.items():
        # Table functions inside CREATE TABLE take no prepared parameters.
        text = (
            "[" + ", ".join(_quoted(v) for v in value) + "]"
            if isinstance(value, list)
            else _quoted(value)
        )
        query = query.replace(f"${key}", text)
    db.execute(f"create table {name} as {query}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _count(db: Any, table: str) -> int:
    return _scalar(db, f"select count(*) from {table}")


def _scalar(db: Any, query: str) -> int:
    row = db.execute(query).fetchone()
    return int(row[0])
