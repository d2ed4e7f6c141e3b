"""The transaction coordinator as a pure state machine (KIP-98, KIP-890, KIP-939)."""
