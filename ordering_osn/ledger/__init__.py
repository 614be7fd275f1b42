"""The ledger: one folder for each chain, with its blocks."""
