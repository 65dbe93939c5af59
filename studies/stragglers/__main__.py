"""`python -m studies.stragglers`: whether the late rank is named right."""

from studies.stragglers.stragglers import main

if __name__ == "__main__":
    main()
