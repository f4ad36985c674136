"""This deployment's pipelines: one folder each."""
