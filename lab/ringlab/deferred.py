"""Packages that take long to import, and that not every command needs: each is imported when something of it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["jinja2", "jsonschema", "np", "special"]


class Deferred:
    """Stands for a package, and imports it once something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Return something of the package, and keep it: this is only called for what isn't kept yet."""
        value = getattr(importlib.import_module(self._name), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import jinja2
    import jsonschema
    import numpy as np
    from scipy import special
else:
    jinja2, jsonschema, np, special = map(Deferred, ("jinja2", "jsonschema", "numpy", "scipy.special"))
