"""The benchmark suite, its performance targets, and the report."""
