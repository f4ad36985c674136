"""Where users' own code runs: processors, stateful functions, their state, their dead letters."""
