"""Texts of error messages."""


def reason(error):
    """Returns the text of an error, to be part of another message.

    Errors of this package and of Keras end with `Received: ...`. A message that
    contains another one keeps only its own. The whole text is in the cause.

    Args:
        error: An exception.
    """
    text = str(error).partition("Received:")[0].strip().removesuffix(".")
    return text or repr(error)
