"""Plans, checks and draws trees of collectors for interests. Imports no other room."""
