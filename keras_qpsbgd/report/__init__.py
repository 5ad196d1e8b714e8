"""The report page of a recorded run: one HTML file without dependencies.

`page` combines the `sections`. They use `svg` to draw the numbers of a run,
which `analysis` and `numbers` compute. `text` escapes everything that comes
from the run.
"""

from keras_qpsbgd.report.page import render

__all__ = ["render"]
