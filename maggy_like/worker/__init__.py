"""The worker: an agent with the socket, a fork server, and a child process for each trial."""
