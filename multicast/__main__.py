"""`python -m multicast` runs the command `amcast`."""

from multicast.cli.main import main

main()
