"""How values lie on members: envelopes, encryption."""
