"""What `make docs` changes before it writes the reference: docstrings become Markdown, options become arguments."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(~?)([\w.]+)`")


class AsMarkdown(griffe.Extension):
    """Turns roles into code, and has ``Example:`` read as the section that it is, not as a paragraph of text."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object, once it is read."""
        if obj.docstring is not None:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            obj.docstring.value = _ROLE.sub(_code, text)


class OptionsAsArguments(griffe.DataclassesExtension):
    """Gives a function that is decorated with ``takes(Options, ...)`` the options as arguments, as Python does."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the functions of a package, once it is read and its dataclasses have their arguments."""
        super().on_package(pkg=pkg)
        for module in pkg["api"].modules.values() if "api" in pkg.modules else ():
            for function in module.functions.values():
                for taken in filter(None, map(_options_of, function.decorators)):
                    arguments = [it for it in module[taken]["__init__"].parameters if it.name != "self"]
                    keyword = griffe.ParameterKind.keyword_only
                    block = griffe.Parameter("block", annotation="bool", kind=keyword, default="True")
                    function.parameters = griffe.Parameters(*arguments, block)


def _options_of(decorator: griffe.Decorator) -> str:
    """The name of the class in ``takes(Options, ...)``; empty if it is another decorator."""
    call = decorator.value
    is_ours = isinstance(call, griffe.ExprCall) and str(call.function) == "takes"
    return str(call.arguments[0]) if is_ours else ""


def _code(role: re.Match[str]) -> str:
    is_short, name = role.groups()
    return f"`{name.rpartition('.')[2] if is_short else name}`"
