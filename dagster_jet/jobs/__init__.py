"""Job handles for users, requests from other processes, restarts, upkeep of a running job."""
