"""`python -m dualwrite.cli`: the command without its installed script."""

from dualwrite.cli import main

if __name__ == "__main__":
    main()
