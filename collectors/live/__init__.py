"""What runs now, for people who look: the tree of collectors, its lags, and the merged timeline."""
