"""`python -m multicast` is the command `amcast`."""

from multicast.cli.main import main

main()
