"""Bytes on disk: one journal, segments per partition, checkpoints and recovery."""
