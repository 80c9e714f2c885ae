"""When Python looks for objects that refer to each other in circles: seldom, because requests leave none behind."""

from __future__ import annotations

import gc

__all__ = ["collect_after_a_loss", "collect_seldom"]

_NEW_OBJECTS = 20_000
"""Between two looks at the youngest objects. Python's own 700 are the objects of a few dozen requests, which all live still."""


def collect_seldom() -> None:
    """Leave what was loaded alone from now on, and look at what comes in larger steps.

    To find out again and again that all of it is still in use would hold every call up, for 35 ms each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])


def collect_after_a_loss() -> None:
    """Look now, since a process that has ended leaves such circles behind, with what a link receives into: hundreds of them would
    go before there are as many new objects as Python waits for. What was loaded is left alone; where it is not, Python looks often
    enough by itself.
    """
    if gc.get_freeze_count():
        gc.collect()
