"""PyTorch's models as our nets, without a file in between: `torch.export` gives ATen operators, and rules make nodes of them.

`rules` has the operators there are, a module a family; `translation` walks through a program and lists all that has no rule.
"""

from dnncore.torch.export.compiled import CompiledModel, compile_model
from dnncore.torch.export.model import to_model
from dnncore.torch.export.package import save_package

__all__ = ["CompiledModel", "compile_model", "save_package", "to_model"]
