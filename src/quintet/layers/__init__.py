"""Small blocks that several methods share."""
