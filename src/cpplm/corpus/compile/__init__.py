"""Documents to the compiler: commands, diagnostics, labels."""
