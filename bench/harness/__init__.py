"""What benchmarks share: processes, brokers, figures, facts."""
