"""`python -m ddpsim` is the command `ddpsim`."""

import sys

if __name__ == "__main__":
    try:
        from ddpsim.cli import main
    except KeyboardInterrupt:  # what answers it was not there yet
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    main()
