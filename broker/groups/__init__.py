"""The group coordinator as a pure state machine (classic groups and KIP-848)."""
