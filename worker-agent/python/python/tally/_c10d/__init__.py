"""The parts of :mod:`tally.torch`: works, fallback, collectives and their adapter to ``c10d``."""
