"""The one exception that means "you can mend this"."""


class UserError(Exception):
    """Bad input, bad settings or a missing tool.

    The message says what is wrong, where, and how to mend it. The command line prints it as one line
    and exits with 2; every other exception is a defect of cpplm and exits with 1.
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(f"{what}. {fix}" if fix else what)
