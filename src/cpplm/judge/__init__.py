"""What becomes of a program that a model wrote: compiled and run in the sandbox, with counted assertions."""
