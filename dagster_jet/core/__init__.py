"""The contract and its smallest parts. Standard library only; no I/O, no clock of its own."""
