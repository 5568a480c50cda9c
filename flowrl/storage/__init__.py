"""State on disk: atomic checkpoints of plain data, with checksums."""
