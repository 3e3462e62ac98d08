"""Feeds torch from Parquet: each row once an epoch by exactly one rank, in equally many steps on all of them."""
