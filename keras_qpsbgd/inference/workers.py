"""Threads that share the rows of a product."""

import concurrent.futures


class Workers:
    """Divides rows among threads.

    Args:
        threads: Positive integer.
    """

    def __init__(self, threads):
        self.threads = threads
        self._pool = None
        if threads > 1:
            # The calling thread also works.
            self._pool = concurrent.futures.ThreadPoolExecutor(threads - 1)

    def run(self, function, rows):
        """Calls `function(start, stop)` for ranges that cover all rows.

        The C kernel computes 4 rows at a time, so the ranges are multiples of
        4.
        """
        share = -(-rows // (4 * self.threads)) * 4
        if self._pool is None or rows <= share:
            function(0, rows)
            return
        futures = [
            self._pool.submit(function, start, min(start + share, rows))
            for start in range(share, rows, share)
        ]
        try:
            function(0, share)
        finally:
            concurrent.futures.wait(futures)
        for future in futures:
            future.result()
