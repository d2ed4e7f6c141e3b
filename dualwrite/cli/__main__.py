"""`python -m dualwrite.cli` is `dualwrite`, where scripts are not on the path."""

from dualwrite.cli import main

if __name__ == "__main__":
    main()
