"""The output of a module inside a network."""

from __future__ import annotations

from typing import Any

from torch import nn

from maggy_like.errors import ConfigError
from optimizers.checks import did_you_mean


class LayerOutput(nn.Module):
    """A network that ends at one of its modules: the output is that of the module, and later ones are not computed.

    Args:
        network: The whole network.
        layer: Name of the module, as in ``network.named_modules()``.

    Raises:
        ConfigError: There is no module of that name.

    Example:
        >>> LayerOutput(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "0")(torch.ones(3, 2, 2)).shape
        torch.Size([3, 4])
    """

    def __init__(self, network: nn.Module, layer: str) -> None:
        super().__init__()
        names = [name for name, _ in network.named_modules() if name]
        if layer not in names:
            near = did_you_mean(layer, names)
            raise ConfigError(
                f"layer must be a module of the network, got {layer!r}{near}; use one of {', '.join(names) or 'none'}"
            )
        self.network, self.layer = network, layer

    def forward(self, *inputs: Any) -> Any:
        """The module's output."""

        def leave(_module: nn.Module, _given: Any, output: Any) -> None:
            raise _Reached(output)

        hook = self.network.get_submodule(self.layer).register_forward_hook(leave)
        try:
            self.network(*inputs)
        except _Reached as reached:
            return reached.output
        finally:
            hook.remove()
        raise ConfigError(f"layer must be a module that the network calls, got {self.layer!r}; use another one")


class _Reached(BaseException):
    """Ends the network's forward. A ``BaseException``, because the network may catch errors."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
