"""`python -m studies.faster`: allreduces that a faster machine makes slower."""

from studies.faster.faster import main

if __name__ == "__main__":
    main()
