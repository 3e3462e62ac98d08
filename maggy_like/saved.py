"""Reading what trials have saved, from wherever the run's store is."""

from __future__ import annotations

from typing import Any

from maggy_like.errors import UserError
from maggy_like.state_names import SHARDED
from maggy_like.worker.checkpoints import load_state


def read_saved(url: str | None, whose: str) -> Any:
    """A saved state.

    Args:
        url: Where it is; None where there is none.
        whose: Who saved it, for people.

    Raises:
        UserError: There is none, it is sharded, or it is gone.
    """
    if url is None:
        raise UserError(f"{whose} has no saved state; call reporter.checkpoint(state) in train_fn")
    if url.endswith(SHARDED):
        raise UserError(f"{url} is sharded; read it with torch.distributed.checkpoint.load")
    try:
        return load_state(url)
    except FileNotFoundError as error:
        raise UserError(f"the saved state {url} is gone: removed, or in a store that is not seen here") from error
