"""`python -m sweepd`: the command line."""

from sweepd.app import main

if __name__ == "__main__":
    main()
