"""Watch what an inference engine was promised, what it took and what is left."""

__version__ = "0.1.0"
