"""Engines: they provide the slots in which workers run."""
