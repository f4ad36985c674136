"""Seeded histories of an execution: the engine's own loop over fake I/O, crashes between any steps.

The engine's: `Loop`, `Coordinator`, `EpochPlanner`, `SnapshotDriver`, `SinkCommitter`, `Retrying`,
`SourceJournals`. Everything else is a model:

scenario.py   what one seed draws: input, settings, odds of faults, where processes die
world.py      virtual time, processes that crash, freeze and are replaced; runs one history
driver.py     one execution: starts what the loop wants, and lets it hear the answers
fibers.py     the threads beside the loop: blocking code of the engine, run piece by piece
committing.py sinks, manifests and processors as phase 2 finds them
writer.py     record writes, one at a time: lost, late, unheard of
epoch.py      the tasks of one epoch: state, chunk sets, staged artifacts, acks
recovery.py   restoring state for any number of shards, the abort pass
register.py   the execution record: claims, fenced writes, writes that land late
chunks.py     the store's map: manifests and chunk sets, really deleted when garbage
sinks.py      staged and committed artifacts
oracle.py     the judge: rows
quorum/       apart from all this: the real quorum register
"""
