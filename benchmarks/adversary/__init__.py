"""What a store, a machine, another driver or a hostile function may do to a search. Run it as a module."""
