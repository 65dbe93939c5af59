"""`python -m studies.convergence`: losses of kept trainings."""

from studies.convergence.scheme_losses import main

if __name__ == "__main__":
    main(["--page"])
