"""Judge of generated programs: compiled and run in the sandbox, with counted assertions."""
