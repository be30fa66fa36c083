"""`python -m gpuring` is the `gpuring` command."""

import sys

from gpuring_command import main

sys.exit(main())
