"""The driver in a task of the Spark application, and clients that follow its files."""
