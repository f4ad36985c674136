"""Operating system services: durable files, processes, scratch folders, fail points."""
