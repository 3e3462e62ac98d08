"""The worker's side: an agent that owns the socket, a fork server, and a child per trial."""
