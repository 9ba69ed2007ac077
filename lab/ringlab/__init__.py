"""ringlab: measures network servers in any language, side by side, and says when it cannot tell."""

__version__ = "0.1.0"
