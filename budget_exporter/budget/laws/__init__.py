"""One file per budget law."""
