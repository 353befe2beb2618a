"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    # `tally` is the import name; on the package index that name is another project's.
    __version__: str = version("tally-ina")
except PackageNotFoundError:
    # A source tree on PYTHONPATH.
    __version__ = "0+unknown"
