"""`python -m studies.schemes`: schemes measured on the lab, and all of them side by side, predicted."""

from studies.schemes.all_schemes import main as compare
from studies.schemes.schemes_measured import main as measured

if __name__ == "__main__":
    measured()
    compare()
