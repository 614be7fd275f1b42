"""Small benchmarks, each a command."""
