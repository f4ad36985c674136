"""Plan an epoch, run it, decide about it: the loop behind every job."""
