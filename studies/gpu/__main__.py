"""`python -m studies.gpu`: all that one GPU can tell."""

from studies.gpu.one_gpu import main

if __name__ == "__main__":
    main()
