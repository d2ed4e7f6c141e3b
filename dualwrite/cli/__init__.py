"""The `dualwrite` command."""
