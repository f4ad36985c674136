"""A sink whose rows name their topics: killed around its commits, rows and their order compared."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from dagster_jet import JobConfig, JobResult, sinks
from dagster_jet.errors import BadRowError, ConfigurationError
from tests.long import long

from .. import child
from ..oracle import committed, input_rows
from ..world import World, write_input
from . import topics_child
from .kafka_world import KafkaWorld


class TopicsWorld(World):
    driver = staticmethod(topics_child.main)
    job = topics_child.JOB
    kafka: KafkaWorld
    topics: list[str]

    def set_up(self, *, letters: bool) -> TopicsWorld:
        """Rows for three topics, and a few for none of them, in files of random sizes."""
        self.kafka = KafkaWorld()
        self.topics = [self.kafka.topic(partitions) for partitions in (1, 2, 3)]
        self.told(letters)
        rng = random.Random("topics")
        kinds = [*self.topics * 5, "elsewhere", None] if letters else self.topics
        v = 0
        for number in range(5):
            rows = []
            for _ in range(rng.randrange(5, 30)):
                v += 1
                rows.append({"k": rng.choice("abcdef"), "v": v, "kind": rng.choice(kinds)})
            write_input(self.folder / "in", number, rows)
        return self

    def told(self, letters: bool) -> None:
        place = {"servers": self.kafka.servers, "topics": self.topics, "letters": letters}
        (self.folder / "place.json").write_text(json.dumps(place))

    def run(self, until: Any = "completed", **config: Any) -> JobResult:
        with self.jet() as jet:
            config = {**child.CONFIG, "restart_attempts_max": 0, **config}
            return jet.run(topics_child.pipeline(self.folder), JobConfig(**config), until=until)

    def by_key(self, rows: list[dict[str, Any]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            found[row["k"]].append(row["v"])
        return found

    def assert_exactly_once(self) -> None:
        """Each topic has its rows once, those of a key in the order of the input."""
        rows = sorted(input_rows(self.folder / "in"), key=lambda row: row["v"])
        for topic in self.topics:
            found = self.kafka.rows(topic)
            wanted = [{"k": r["k"], "v": r["v"]} for r in rows if r.get("kind") == topic]
            assert wanted and Counter(r["v"] for r in found) == Counter(r["v"] for r in wanted)
            assert all(row.keys() == {"k", "v"} for row in found)
            assert self.by_key(found) == self.by_key(wanted)
        others = Counter((r["k"],) for r in rows if r.get("kind") not in self.topics)
        assert committed(self.folder / "refused", ("position",)) == others


@pytest.fixture
def world(world: World) -> TopicsWorld:
    return TopicsWorld(world.folder, world.fail_points, world.spark)


@pytest.mark.parametrize(
    "rules",
    [
        "kafka.commit.produced:2=kill",  # messages of all topics are there, in an open transaction
        pytest.param("kafka.commit.after:2=kill", marks=long),
        pytest.param("record.snapshot.after:3=kill", marks=long),
    ],
)
def test_killed_around_a_commit(world: TopicsWorld, rules: str) -> None:
    world.set_up(letters=True)
    world.run_child(rules)
    world.run()
    world.assert_exactly_once()


def test_a_topic_more_while_a_commit_is_owed(world: TopicsWorld) -> None:
    """Rows decided for two topics are committed there; rows for the third topic follow."""
    world.set_up(letters=False)
    every = world.topics
    for path in sorted((world.folder / "in").iterdir())[:3]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, "kind": every[row["v"] % 2]} for row in lines]
        write_input(world.folder / "in", int(path.stem), rows)
    world.topics = every[:2]
    world.told(letters=False)
    world.run_child("record.snapshot.after:3=kill")
    world.topics = every
    world.told(letters=False)
    world.run()
    world.assert_exactly_once()


def test_an_unknown_topic_is_named(world: TopicsWorld) -> None:
    world.set_up(letters=False)
    write_input(world.folder / "in", 0, [{"k": "a", "v": 0, "kind": "elsewhere"}])
    said = r"'out', position 'a': .*column 'kind' names the topic 'elsewhere', expected one of t-"
    with pytest.raises(BadRowError, match=said):
        world.run()
    assert not any(world.kafka.rows(topic) for topic in world.topics)
    world.topics = [*world.topics, "missing"]
    world.told(letters=False)
    with pytest.raises(ConfigurationError, match=r"'out': the topic 'missing' does not exist"):
        world.run()


def test_words_that_do_not_fit() -> None:
    wrong: list[dict[str, Any]] = [
        {}, {"topics": ["a"]}, {"topic_column": "c"}, {"topic": "a", "topic_column": "c"},
        {"topic": "a", "topics": ["a"], "topic_column": "c"},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(ConfigurationError, match=r"either topic .* or both topics and topic_c"):
            sinks.kafka("kafka:9092", **given)
    with pytest.raises(ConfigurationError, match="held transactions write to one topic"):
        sinks.kafka("kafka:9092", topics=["a", "b"], topic_column="c", transactions="held")
