"""The same search under every setting of Spark that users have."""
