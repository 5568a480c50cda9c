"""State on disk: checkpoints that are there whole or not at all, checksummed, of plain data."""
