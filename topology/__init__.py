"""Interest sets become trees of collectors: planned, checked, drawn. Imports no other room."""
