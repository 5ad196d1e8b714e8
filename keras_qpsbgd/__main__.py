"""Entry point of `python -m keras_qpsbgd`."""

import sys

from keras_qpsbgd import cli

sys.exit(cli.main())
