"""What a column of a table is to a model, and its values as arrays and tensors."""
