"""Texts of error messages and tables."""


def reason(error):
    """Returns the text of an error, to be part of another message.

    Errors of this package and of Keras end with `Received: ...`. A message that
    quotes another one must end with its own `Received` only. The cause has the
    full text.

    Args:
        error: An exception.
    """
    text = str(error).partition("Received:")[0].strip().removesuffix(".")
    return text or repr(error)


def table(rows, left=1, gap=2):
    """Returns a table as text, with a line below its header.

    Args:
        rows: List of lists of strings, all of the same length. The first one is
            the header.
        left: Integer. Number of columns that are aligned to the left. All
            others are aligned to the right. Defaults to `1`.
        gap: Integer. Number of spaces between two columns. Defaults to `2`.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        (" " * gap)
        .join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        )
        .rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * (sum(widths) + gap * (len(widths) - 1)))
    return "\n".join(lines)
