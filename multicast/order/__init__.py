"""What an order stream says: runs, records and their bytes, and the rule by which they count."""
