"""One module per API key; the folder listing is the feature list."""
