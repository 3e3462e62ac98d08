"""A DataFrame as Parquet files that every worker can read."""
