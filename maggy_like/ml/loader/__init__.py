"""Load batches for PyTorch from Parquet: each row once per epoch on exactly one rank, in equally many steps on all."""
