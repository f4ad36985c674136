"""PyFlink: the suite's own SQL, JSON files in and out, a checkpoint every second.

Flink's file source reads a backlog in no order, so that event time would jump back and forth and
rows would be late. `OrderedFiles.java`, compiled when the engine starts, is the same source with
files in order of name.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from benchmarks.race.order import Order, read_order

_JAVA = Path(__file__).parent / "OrderedFiles.java"
_FACTORY = "benchmarks.OrderedFiles$Factory"
_BID = "event_type = 2"

OUTPUT = {
    "q1": "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), date_time TIMESTAMP_LTZ(3), "
    "extra STRING",
    "q5": "auction BIGINT, num BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3)",
    "q7": "auction BIGINT, price BIGINT, bidder BIGINT, date_time TIMESTAMP_LTZ(3), extra STRING",
    "q8": "id BIGINT, name STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3)",
    "q11": "bidder BIGINT, bid_count BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3)",
    "q18": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "date_time TIMESTAMP_LTZ(3), number BIGINT, extra STRING",
}
VIEWS = f"""
CREATE TEMPORARY VIEW bid AS SELECT number, date_time, bid.auction AS auction,
    bid.bidder AS bidder, bid.price AS price, bid.channel AS channel, bid.url AS url,
    bid.extra AS extra FROM events WHERE {_BID};
CREATE TEMPORARY VIEW person AS SELECT date_time, person.id AS id, person.name AS name
    FROM events WHERE event_type = 0;
CREATE TEMPORARY VIEW auction AS SELECT date_time, auction.seller AS seller
    FROM events WHERE event_type = 1
"""
QUERIES = {
    "q1": "SELECT auction, bidder, 0.908 * price, date_time, extra FROM bid",
    "q5": """
        SELECT c.auction, c.num, c.window_start, c.window_end FROM (
            SELECT auction, COUNT(*) AS num, window_start, window_end FROM TABLE(HOP(TABLE bid,
                DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) c
        JOIN (
            SELECT MAX(num) AS most, window_start, window_end FROM (
                SELECT auction, COUNT(*) AS num, window_start, window_end FROM TABLE(HOP(TABLE bid,
                    DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                GROUP BY auction, window_start, window_end)
            GROUP BY window_start, window_end) m
        ON c.num = m.most AND c.window_start = m.window_start AND c.window_end = m.window_end
        """,
    "q7": """
        SELECT b.auction, b.price, b.bidder, b.date_time, b.extra FROM (
            SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))) b
        JOIN (
            SELECT MAX(price) AS price, window_start, window_end FROM TABLE(
                TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end) m
        ON b.price = m.price AND b.window_start = m.window_start AND b.window_end = m.window_end
        """,
    "q8": """
        SELECT p.id, p.name, p.window_start, p.window_end FROM (
            SELECT id, name, window_start, window_end FROM TABLE(
                TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end) p
        JOIN (
            SELECT seller, window_start, window_end FROM TABLE(
                TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
        """,
    "q11": """
        SELECT bidder, COUNT(*), window_start, window_end FROM TABLE(SESSION(
            TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
        """,
    # The file sink takes no updates: a stream of changes, each with the row that is now the last.
    "q18": """
        SELECT auction, bidder, price, channel, url, date_time, number, extra
        FROM TO_CHANGELOG(input => TABLE last_bid) WHERE op IN ('INSERT', 'UPDATE_AFTER')
        """,
}
LAST_BID = """
CREATE TEMPORARY VIEW last_bid AS
SELECT auction, bidder, price, channel, url, date_time, number, extra FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, number DESC)
        AS place FROM bid)
WHERE place <= 1
"""


def run(order: Order) -> None:
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for key, value in _settings(order).items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    tables = TableEnvironment.create(settings.with_configuration(configuration).build())
    tables.execute_sql(_source(order))
    for view in VIEWS.split(";"):
        tables.execute_sql(view)
    if order.query == "q18":
        tables.execute_sql(LAST_BID)
    tables.execute_sql(
        f"CREATE TABLE answer ({OUTPUT[order.query]}) WITH ('connector' = 'filesystem', "
        f"'path' = 'file://{order.output}', 'format' = 'json', "
        "'json.timestamp-format.standard' = 'ISO-8601', "
        "'sink.rolling-policy.rollover-interval' = '500 ms', "
        "'sink.rolling-policy.inactivity-interval' = '500 ms', "
        "'sink.rolling-policy.check-interval' = '200 ms')"
    )
    tables.execute_sql(f"INSERT INTO answer {QUERIES[order.query]}").wait()


def _source(order: Order) -> str:
    from dagster_jet.connectors.generated.nexmark.schema import VIEWS as VIEW_COLUMNS

    def type_of(type_: str) -> str:
        return {"timestamp": "TIMESTAMP_LTZ(3)"}.get(type_, type_.upper())

    rows = ", ".join(
        f"{view} ROW<{', '.join(f'`{name}` {type_of(t)}' for name, t in columns.items())}>"
        for view, columns in VIEW_COLUMNS.items()
    )
    return (
        f"CREATE TABLE events (number BIGINT, event_type INT, date_time TIMESTAMP_LTZ(3), {rows}, "
        f"WATERMARK FOR date_time AS date_time - INTERVAL '{order.lag_ms / 1000:.3f}' SECOND) "
        f"WITH ('connector' = 'ordered-files', 'path' = 'file://{order.source}', "
        "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601', "
        "'source.monitor-interval' = '100 ms')"
    )


def _settings(order: Order) -> dict[str, str]:
    state = Path(order.state)
    settings = {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.process.size": "2g",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{state}/checkpoints",
        "execution.checkpointing.num-retained": "2",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "table.local-time-zone": "UTC",
        "table.exec.source.idle-timeout": "1 s",
        "rest.bind-port": "0",
        "rest.port": "0",
        "pipeline.jars": f"file://{_ordered_files(state)}",
        **order.settings,
    }
    newest = _newest_checkpoint(state / "checkpoints")
    if newest is not None:
        settings["execution.state-recovery.path"] = f"file://{newest}"
    return settings


def _newest_checkpoint(folder: Path) -> Path | None:
    """Newest checkpoint of an earlier life; without a job manager Flink does not find it itself."""
    whole = [path.parent for path in folder.glob("*/chk-*/_metadata")]
    return max(whole, key=lambda path: (path / "_metadata").stat().st_mtime, default=None)


def _ordered_files(state: Path) -> Path:
    """The jar with the source that reads files in order."""
    import pyflink

    jar = state / "ordered-files.jar"
    if not jar.exists():
        classes = state / "classes"
        libraries = Path(pyflink.__file__).parent / "lib"
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{libraries}/*", "-d", str(classes), str(_JAVA)],
            check=True,
        )
        with zipfile.ZipFile(jar, "w") as archive:
            for path in classes.rglob("*.class"):
                archive.write(path, path.relative_to(classes))
            archive.writestr("META-INF/services/org.apache.flink.table.factories.Factory", _FACTORY)
    return jar


if __name__ == "__main__":
    run(read_order())
