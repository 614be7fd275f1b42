"""`amcast osn`."""
