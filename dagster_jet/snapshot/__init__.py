"""The snapshot protocol: record, manifest, coordinator. Pure; callers do the I/O."""
