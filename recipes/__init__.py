"""Compositions of the client layer and the stores."""
