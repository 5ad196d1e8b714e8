"""The networks of `models/`, trained and packed.

    python -m research models mnist-relu mnist-binary
    python -m research models cifar10-vgg --weights FILE --run FILE

`mnist.py` trains on this machine. `cifar10.py` rebuilds a network that
`research.cifar10.train --weights` trained on a GPU. `cards.py` stores the
packed file `NAME.kq` with its record `NAME.json`, and writes the tables of
`models/README.md`.
"""
