"""A trained network applied to the rows of a DataFrame: in batch, on a stream, and in SQL."""
