"""Where an optimizer is asked: beside the driver's loop, in its process or in one of the optimizer's own."""
