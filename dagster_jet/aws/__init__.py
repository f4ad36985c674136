"""Access to AWS services for the store's members and the files connectors."""
