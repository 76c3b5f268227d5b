"""What argv can ask for: serve, demo."""
