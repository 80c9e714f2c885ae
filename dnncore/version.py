"""The version, in one place: the distribution, the server's metadata and model packages read it here."""

__all__ = ["__version__"]

__version__ = "0.1.0"
"""As in the name of the distribution: "1.2.3"."""
