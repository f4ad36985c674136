"""One outside system per folder, source and sink together."""
