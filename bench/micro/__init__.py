"""Small benchmarks, each a command of its own."""
