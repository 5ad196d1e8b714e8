"""Texts of error messages."""


def reason(error):
    """Returns the text of an error, for use in another message.

    Errors of this package and of Keras end with `Received: ...`. This part is
    removed, because a message that quotes another one must have only its own.
    The cause has the full text.

    Args:
        error: An exception.
    """
    text = str(error).partition("Received:")[0].strip().removesuffix(".")
    return text or repr(error)
