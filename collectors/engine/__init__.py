"""What all collectors of a process share, and one instance of each."""
