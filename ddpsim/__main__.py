"""`python -m ddpsim` is the command `ddpsim`."""

from ddpsim.cli import main

if __name__ == "__main__":
    main()
