"""Fragments of malicious pickles."""

import pickle
import struct

from keras_qpsbgd.datasets import safe_pickle

# Maximum memory for all files of one kind together, in KiB.
MAX_MEMORY = 300 * 1024


def text(value):
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


# Fragments that the tests insert into a pickle.
FRAGMENTS = [
    b"cos\nsystem\n(Vtrue\ntR",
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"c__builtin__\neval\n",
    text("os") + text("system") + b"\x93",
    text("builtins") + text("getattr") + b"\x93",
    text("numpy") + text("ndarray.__class__") + b"\x93",
    b"(Vtrue\nios\nsystem\n",  # INST
    b"(cos\nsystem\nVtrue\no",  # OBJ
    b"cos\nsystem\n)\x81",  # NEWOBJ
    b"cos\nsystem\n)}\x92",  # NEWOBJ_EX
    b"\x82\x01",  # EXT1
    b"\x83\x01\x00",
    b"\x84\x01\x00\x00\x00",
    b"P1\n",  # a persistent object
    b"K\x01Q",
    b"\x97",  # the next buffer
    b"\x98",
    b"N}Vx\nK\x01s\x86b",  # (None, {"x": 1}) as the state
    b"}Vx\nK\x01sb",
    b"2",  # DUP
    b"0",  # POP
    b"1",
    b"\x8f(\x90",
    b"(\x91",
    b"\x85",
    b"t",
    b"R",
    b"b",
    b"s",
    b"u",
    b"a",
    b"e",
    b"d",
    b"l",
    b"(",
    b")",
    b"]",
    b"}",
    b"N",
    b"I1\n",
    b"I-1\n",
    b"L99999999999999999999L\n",
    b"\x8b\xff\xff\xff\x7f",  # LONG4 of 2 GiB
    b"B\xff\xff\xff\x7f",  # bytes of 2 GiB
    b"X\xff\xff\xff\xff",
    b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",  # a frame
    b"r\xff\xff\xff\x7f",  # object number 2**31 - 1
    b"p99999999\n",
    b"h\x00",
    b"h\x01",
    b"q\x00",
    b"q\x01",
    b"j\x00\x00\x00\x00",
    b"\x94",
    *(
        b"c%s\n%s\n" % (module.encode(), name.encode())
        for module, _, name in (
            known.rpartition(".") for known in safe_pickle.GLOBALS
        )
    ),
]
