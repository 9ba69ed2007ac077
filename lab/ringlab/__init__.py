"""ringlab: measures network servers in any language, side by side, and says when it cannot tell.

`cli` has the commands, `session` turns a request into a race and its reports, `runner` races, `analysis` judges, `report` shows;
`guard` is a session of two revisions. docs/layers.md says which module may import which.
"""

__version__ = "0.1.0"


class Refused(Exception):
    """A request that can't be carried out; the message says why, and what to do instead."""
