"""PyTorch's modules with our forward; parameters, buffers, settings and state_dict are theirs, so that one becomes ours in place.

They are made and saved as PyTorch's: `dnncore.torch.modules.Conv2d(3, 8, 3)`, `pickle.dumps(net)`. Each class says in `why_not`
which settings it does not compute: its constructor raises BadParamError for them, and `convert` leaves such modules as they are.
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from dnncore.torch.modules import activation, classifier, convolution, normalization, pooling

__all__ = ["MODULES"]

MODULES: dict[type[nn.Module], Any] = {
    **activation.MODULES,
    **classifier.MODULES,
    **convolution.MODULES,
    **normalization.MODULES,
    **pooling.MODULES,
}
"""Our class for each of PyTorch's; each is a subclass of it."""

# Under their names here, where users and pickle look for them.
globals().update({ours.__name__: ours for ours in MODULES.values()})
__all__ += [ours.__name__ for ours in MODULES.values()]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
