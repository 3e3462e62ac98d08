"""An agent as a separate process: ``python -m maggy_like.worker``, with the task and the worker's slot on stdin.

Stdin stays open as long as the launcher lives; its end ends the agent.
"""

from __future__ import annotations

import sys

from maggy_like.processes.system import die_with_parent
from maggy_like.processes.titles import belong_to, entitle
from maggy_like.processes.zygote.become import is_fork
from maggy_like.processes.zygote.client import keep_no_zygote
from maggy_like.worker.agent.agent import Agent
from maggy_like.worker.agent.children import ForkServerLauncher
from maggy_like.worker.launch import read_launch


def main() -> None:
    """Serve one run."""
    task, launch = read_launch(sys.stdin.buffer)
    if not is_fork():  # else the parent may be any thread of the driver's process, and end before it
        die_with_parent(launch.parent)
    belong_to(launch.context.index, task.name)
    entitle("", "maggy_like.worker")
    keep_no_zygote()
    children = ForkServerLauncher(task, launch.context)  # first: its fork must not get a socket of the agent
    Agent(task, launch.context, launcher=children, lifeline=sys.stdin.fileno()).run()


if __name__ == "__main__":
    main()
