"""The verbs of the store: one method for each script, by what it acts on."""
