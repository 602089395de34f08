"""`python -m sweepd`: the command line."""

if __name__ == "__main__":  # not in its child processes
    from sweepd.app import main

    main()
