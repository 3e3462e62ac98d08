"""An agent as a process of its own: ``python -m maggy_like.worker``, the task and the worker's slot on stdin.

Stdin stays open for as long as the launcher lives; its end ends the agent.
"""

from __future__ import annotations

import sys

from maggy_like.processes.lifeline import die_with_parent
from maggy_like.worker.agent.agent import Agent
from maggy_like.worker.launch import read_launch


def main() -> None:
    """Serve one run."""
    launch = read_launch(sys.stdin.buffer)
    die_with_parent(launch.parent)
    Agent(launch.task, launch.context, lifeline=sys.stdin.fileno()).run()


if __name__ == "__main__":
    main()
