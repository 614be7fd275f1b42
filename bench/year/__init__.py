"""A year in half an hour: `python -m bench.year`."""
