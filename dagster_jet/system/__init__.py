"""Leaves that touch the operating system: durable files, processes, scratch, fail points."""
