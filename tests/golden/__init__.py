"""Snapshots as versions of this library have written them, for ever: today's code must go on from
each (tests/integration/test_golden_snapshots.py). How one is added: `write.py`."""
