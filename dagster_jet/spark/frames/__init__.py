"""Spark frames of one epoch, made from an execution's plan and the epoch's input."""
