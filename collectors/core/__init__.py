"""What a collector decides. No I/O."""
