"""State stores: where the prepared transaction is remembered beside the data."""
