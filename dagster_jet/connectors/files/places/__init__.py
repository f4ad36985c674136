"""Places of files: one module per kind of storage behind one interface."""
