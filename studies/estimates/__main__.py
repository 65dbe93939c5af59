"""`python -m studies.estimates`: estimated against published steps of one GPU."""

from studies.estimates.estimates import main

if __name__ == "__main__":
    main()
