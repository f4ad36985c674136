"""This deployment's configured resources."""
