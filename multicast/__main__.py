"""`python -m multicast` is the command `amcast`."""

from multicast.cli import main

main()
