"""Retention deletes exactly the objects that nothing needs, compared with sets counted in full."""

from __future__ import annotations

import random

import pytest

from dagster_jet.snapshot.manifest import ChunkSet, ChunkSetTexts, Manifest
from dagster_jet.snapshot.retention import Retention

Chains = dict[str, tuple[tuple[ChunkSet, ...], ...]]


def names(chains: Chains) -> dict[str, frozenset[str]]:
    return {v: frozenset(one.name for c in of for one in c) for v, of in chains.items()}


def next_chains(chains: Chains, number: int, rng: random.Random) -> Chains:
    """Changes some shards' chains: one set more, and some of the oldest fewer, or all."""
    changed: Chains = {}
    for vertex, of_shards in chains.items():
        shards = list(of_shards)
        for shard, chain in enumerate(shards):
            if rng.random() < 0.4:
                new = ChunkSet(f"{vertex}/{number}-{shard}", number, 1, 1, 1, number)
                kept = chain[rng.choice((0, 0, 1, len(chain))) :]
                shards[shard] = (*kept, new)
            elif rng.random() < 0.3:
                shards[shard] = (*chain[:1], *chain[1:])  # equal, and another object
        changed[vertex] = tuple(shards)
    return changed


def manifest(snapshot_id: int, chains: Chains) -> Manifest:
    return Manifest("j", snapshot_id, 1, 1, 0, "v", 271, {"in": {"files": 3}}, {}, chains, ())


@pytest.mark.parametrize("seed", range(50))
def test_garbage_is_what_no_retained_snapshot_needs(seed: int) -> None:
    rng = random.Random(seed)
    retained_max, found = rng.choice((1, 2, 3, 4)), rng.choice((0, 1, 3))
    chains: Chains = {"a": ((),) * 3, "b": ((),) * 2}
    retained: dict[int, Chains] = {}
    for number in range(found):
        chains = next_chains(chains, number, rng)
        retained[number] = chains
    retention, texts = Retention.of({i: names(c) for i, c in retained.items()}), ChunkSetTexts()
    if found and rng.random() < 0.3:  # restored by another number of shards
        chains = {"a": ((),) * 5, "b": ((),) * 1}
    for number in range(10, 60):
        chains = next_chains(chains, number, rng)
        retained[number] = chains
        retention.decided(number, chains)
        dropped = sorted(retained)[: max(0, len(retained) - retained_max)]
        gone = {(v, n) for i in dropped for v, of in names(retained.pop(i)).items() for n in of}
        gone -= {(v, n) for c in retained.values() for v, of in names(c).items() for n in of}
        found_garbage = retention.dropped(dropped)
        assert {(v, n) for v, of in found_garbage.items() for n in of} == gone
        one = manifest(number, chains)
        assert one.to_bytes(texts) == one.to_bytes()
        assert Manifest.from_bytes(one.to_bytes(texts)) == one
    assert len(retention._left) < retained_max, "what is kept does not grow"


def test_a_renamed_vertex_keeps_the_sets_that_have_its_former_name() -> None:
    old, new = (ChunkSet(f"a/{number}", number, 1, 1, 1) for number in (1, 2))
    retention = Retention.of({1: {"a": frozenset({"a/1"})}})
    retention.decided(2, {"b": ((old, new),)})
    assert retention.dropped([1]) == {}
    both = Retention.of({1: {"a": frozenset({"a/1"})}, 2: {"b": frozenset({"a/1", "a/2"})}})
    assert both.dropped([1]) == {}
