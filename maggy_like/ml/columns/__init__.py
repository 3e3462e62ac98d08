"""Shapes and types of a table's columns for a model, and their values as arrays and tensors."""
