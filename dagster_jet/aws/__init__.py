"""AWS services as the store's members and the files connectors use them."""
