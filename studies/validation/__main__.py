"""`python -m studies.validation`: what was predicted before the kept runs, and what today's code says of them."""

from studies.validation.validation import main

if __name__ == "__main__":
    main()
