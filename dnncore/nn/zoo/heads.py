"""What several nets end in."""

from __future__ import annotations

from dnncore.nn.builder import NetBuilder

__all__ = ["classifier"]


def classifier(net: NetBuilder, x: str, width: int, num_classes: int, *, dropout_first: bool) -> str:
    """Three inner products with rectifiers and dropout between them, in the order of AlexNet or of VGG.

    Args:
        net: The net.
        x: Places of channels.
        width: Outputs of the first two.
        num_classes: Outputs of the third.
        dropout_first: Whether dropout stands before each of the first two, or behind it.
    """
    first, second = (1, 4) if dropout_first else (0, 3)
    for index in (first, second):
        if dropout_first:
            x = net.dropout(f"classifier.{index - 1}", x)
        x = net.relu(f"classifier.{index + 1}", net.inner_product(f"classifier.{index}", x, width))
        if not dropout_first:
            x = net.dropout(f"classifier.{index + 2}", x)
    return net.inner_product("classifier.6", x, num_classes)
