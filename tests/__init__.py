"""The tests, as one package: what they share has one name."""
