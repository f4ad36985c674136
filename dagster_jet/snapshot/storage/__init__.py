"""Snapshots in the store: chunk sets, the chains they form, manifests."""
