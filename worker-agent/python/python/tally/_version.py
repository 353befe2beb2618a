"""Version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    # The import name is `tally`; on the package index that is another project.
    __version__: str = version("tally-ina")
except PackageNotFoundError:
    # A source tree on PYTHONPATH.
    __version__ = "0+unknown"
