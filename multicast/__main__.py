"""`python -m multicast` runs the command `amcast`."""

import sys

if __name__ == "__main__":
    try:
        from multicast.cli.main import main
    except ImportError as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(2)
    main()
