"""Runs users' code: processors, stateful functions, their state and dead letters."""
