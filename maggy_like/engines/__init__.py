"""Engines: where the gang's slots come from."""
