"""`python -m cpplm.cli.trial ARGUMENTS`: the command line, which stops when whoever started it is gone.

Its standard input is a pipe whose other end the parent holds: when that ends, however it ends, this process
stops as by SIGTERM, and saves what was learned.
"""

from __future__ import annotations

import os
import signal

from cpplm.cli.main import main
from cpplm.core.workers import on_stdin_closed

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    on_stdin_closed(lambda: os.kill(os.getpid(), signal.SIGTERM))
    main()
