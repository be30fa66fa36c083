"""`python -m gpuring` is the `gpuring` command."""

import sys

from gpuring.cli import main

sys.exit(main())
