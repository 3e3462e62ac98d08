"""Asking an optimizer next to the driver's loop, in the driver's process or in a separate one."""
