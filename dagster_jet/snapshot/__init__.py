"""The snapshot protocol: record, manifest, coordinator. Pure; the store and Spark are handed in."""
