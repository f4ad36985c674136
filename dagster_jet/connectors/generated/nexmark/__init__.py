"""NEXMark: an auction's stream of persons, auctions and bids, to try things out on."""

from dagster_jet.connectors.generated.nexmark.source import NexmarkSource

__all__ = ["NexmarkSource"]
