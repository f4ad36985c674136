"""Storage of files: one module per kind of storage, with a common interface."""
