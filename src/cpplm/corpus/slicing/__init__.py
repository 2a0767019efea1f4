"""Documents of a project: what a compiler would read, less what nothing needs."""
