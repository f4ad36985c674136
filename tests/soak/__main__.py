"""Rounds of random kills, until there were as many as asked for; says how many rows were wrong."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..jvm import start_quickly
from .dagster_round import DagsterRound
from .kafka_round import KafkaRound
from .lake_round import LakeRound
from .postgres_round import PostgresRound
from .round import LAKE_PLACES, UNDER_DAGSTER, VICTIMS, Round, Setting, Verdict
from .standby_round import StandbyRound
from .three_sinks_round import ThreeSinksRound

PER_ROUND = 25


def settings(
    kills: int,
    seed: int,
    *,
    kafka: bool = False,
    dagster: bool = False,
    three_sinks: bool = False,
    lake: Sequence[str] = (),
    postgres: bool = False,
    standby: bool = False,
    cluster: bool = False,
) -> list[Setting]:
    """Every other round on two executor JVMs (all with `cluster`), every other pair of rounds on
    Redis; with servers or under Dagster all on local threads and files, with a standby on local
    threads.

    With servers every other round holds its transactions, and there are two rounds at least. Lake
    tables are in each of the places in turn, and each turn holds in the others. In two places of
    four rows wait for larger files, and in the others in the next turn."""
    rng = random.Random(seed)
    servers = not dagster and (kafka or three_sinks or bool(lake) or postgres)
    plain = not (servers or dagster)
    per_round = min(PER_ROUND, -(-kills // max(2, len(lake)))) if servers else PER_ROUND
    rounds = -(-kills // per_round)
    return [
        Setting(
            seed=rng.randrange(1 << 30),
            kills=min(per_round, kills - number * per_round),
            cluster=(cluster or bool(number & 1)) and plain and not standby,
            redis=not number & 2 and plain,
            kafka=kafka,
            dagster=dagster,
            three_sinks=three_sinks,
            lake=lake[number % len(lake)] if lake else "",
            postgres=postgres,
            standby=standby,
            held=bool((number + (number // len(lake) if len(lake) > 1 else 0)) & 1) and servers,
            waits=bool(lake) and bool((number // 2 + number // len(lake)) & 1),
        )
        for number in range(rounds)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="kill nobody after so long"
    )
    parser.add_argument("--json", action="store_true", help="the verdict for programs")
    parser.add_argument("--kafka", action="store_true", help="rows from Kafka to Kafka")
    parser.add_argument("--dagster", action="store_true", help="under Dagster, and its processes")
    parser.add_argument(
        "--three-sinks",
        action="store_true",
        help="Kafka and files in; Kafka, PostgreSQL and Parquet out",
    )
    parser.add_argument(
        "--lake",
        nargs="?",
        const="all",
        choices=("all", *LAKE_PLACES),
        help="Kafka in; Delta Lake, Iceberg and Kafka out: tables in all places in turn, or in one",
    )
    parser.add_argument(
        "--postgres",
        action="store_true",
        help="rows from Kafka to PostgreSQL; with --dagster: Dagster's storage is PostgreSQL",
    )
    parser.add_argument("--standby", action="store_true", help="a second process waits for the job")
    parser.add_argument("--cluster", action="store_true", help="all rounds on two executor JVMs")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    console.print(f"{options.kills} kills, seed {options.seed}", highlight=False)
    start_quickly()  # hundreds of JVMs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that no process is left behind
    begun = time.monotonic()
    killed: Counter[str] = Counter()
    verdicts: list[Verdict] = []
    for setting in settings(
        options.kills,
        options.seed,
        kafka=options.kafka,
        dagster=options.dagster,
        three_sinks=options.three_sinks,
        lake=LAKE_PLACES if options.lake == "all" else [options.lake] if options.lake else [],
        postgres=options.postgres,
        standby=options.standby,
        cluster=options.cluster,
    ):
        until = begun + 60 * options.minutes
        if time.monotonic() > until:
            break
        folder = Path(tempfile.mkdtemp(prefix="jet-soak-"))

        def tell(victim: str, where: str = setting.lake or setting.master) -> None:
            killed[victim] += 1
            console.print(
                f"{killed.total():>4}/{options.kills}  {time.monotonic() - begun:6.0f} s  "
                f"{where:<22} {victim}",
                highlight=False,
            )

        verdict = _kind(setting)(folder, setting, tell, until).play()
        verdicts.append(verdict)
        if verdict.notes:
            console.print(verdict.notes, highlight=False)
        if verdict.wrong or verdict.broken:
            console.print(
                f"[red]wrong[/red], kept in {folder}: {verdict.wrong} {verdict.broken}",
                highlight=False,
            )
        else:  # said at once: whoever ends the soak early knows what it has found
            console.print(f"round {len(verdicts)}: {verdict.rows:,} rows compared, 0 wrong")
            shutil.rmtree(folder)
    wrong = sum(verdict.rows_wrong for verdict in verdicts)
    console.print(_table(verdicts))
    if options.json:
        print(
            json.dumps([{**asdict(verdict), "kills": dict(verdict.kills)} for verdict in verdicts])
        )
    console.print(
        f"{killed.total()} kills ({', '.join(f'{n} {v}' for v, n in killed.items())}), "
        f"{sum(v.rows for v in verdicts):,} rows compared, rows wrong: {wrong}",
        highlight=False,
    )
    return 1 if wrong or any(verdict.broken for verdict in verdicts) else 0


def _kind(setting: Setting) -> type[Round]:
    if setting.dagster:
        return DagsterRound
    if setting.three_sinks:
        return ThreeSinksRound
    if setting.lake:
        return LakeRound
    if setting.postgres:
        return PostgresRound
    if setting.standby:
        return StandbyRound
    return KafkaRound if setting.kafka else Round


def _places(setting: Setting) -> str:
    tables = f"{setting.lake}, rows wait" if setting.waits else setting.lake
    return tables or ("redis" if setting.redis else "files")


def _table(verdicts: list[Verdict]) -> Table:
    victims = [
        victim
        for victim in (*VICTIMS, *UNDER_DAGSTER)
        if any(victim in verdict.setting.victims for verdict in verdicts)
    ]
    table = Table(
        "seed", "master", "store", "transactions", *victims, "starts", "rows", "rows wrong"
    )
    for verdict in verdicts:
        table.add_row(
            str(verdict.setting.seed),
            verdict.setting.master,
            _places(verdict.setting),
            "held" if verdict.setting.held else "",
            *(str(verdict.kills[victim]) for victim in victims),
            str(verdict.starts),
            f"{verdict.rows:,}",
            str(verdict.rows_wrong),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
