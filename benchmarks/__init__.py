"""One file a claim: each prints a table and writes JSON. See benchmarks/README.md."""
