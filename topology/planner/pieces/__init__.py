"""A lower bound of all trees from connected pieces: tight where few logs separate demands."""
