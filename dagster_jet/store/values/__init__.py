"""The format of values on members: envelopes, encryption."""
