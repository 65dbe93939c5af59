"""`python -m studies.bands`: how often bands hold."""

import sys

from studies.bands.coverage import main

if __name__ == "__main__":
    main(sys.argv[1:])
