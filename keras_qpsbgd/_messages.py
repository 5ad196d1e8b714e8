"""Texts of error messages."""


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
