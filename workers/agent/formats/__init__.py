"""Model formats: how each kind of model is prompted, continued and read. `registry` chooses one."""
