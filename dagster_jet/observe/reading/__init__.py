"""Read by others: why nothing comes out, where the time goes, how far a job is."""
