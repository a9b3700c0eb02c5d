"""One module per stage of the workflow: a rule of the Snakefile, and a command of the same name."""
