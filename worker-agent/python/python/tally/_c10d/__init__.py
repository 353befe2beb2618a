"""Parts of :mod:`tally.torch`: works, fallback, collectives and ``c10d`` adapter."""
