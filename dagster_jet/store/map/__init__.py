"""The replicated map: partition table, routing, search, repair of copies."""
