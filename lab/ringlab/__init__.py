"""ringlab: measures network servers in any language, side by side, and says when it cannot tell.

`cli` has the commands, `session` makes of what is asked for a race and its reports, `runner` races, `analysis` judges, `report`
shows; `guard` is a session of two revisions. Each may import those after it, and none before it.
"""

__version__ = "0.1.0"


class Refused(Exception):
    """What was asked for can't be done; the text says why, and what to do."""
