"""The version, in one place: the build, the command line and the documents read it here."""

__version__ = "0.1.0"
