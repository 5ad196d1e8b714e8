"""`python -m research models`."""

from research import arguments as shared
from research.models import cards

MNIST = ("mnist-relu", "mnist-binary")
CIFAR10 = ("cifar10-vgg-relu", "cifar10-vgg-binary")


def add(commands):
    """Adds the command."""
    parser = commands.add_parser(
        "models",
        help="train and pack the networks of models/",
        description="Train the networks of models/ on MNIST (minutes each), "
        "or rebuild those that research.cifar10.train has trained. Writes "
        "packed files, records, and pictures of test images. "
        "`python -m research pages` writes the model cards.",
    )
    names = (*MNIST, *CIFAR10)
    parser.add_argument(
        "names",
        nargs="+",
        choices=names,
        metavar="NAME",
        help=f"of {', '.join(names)}",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="for CIFAR-10: the weights that research.cifar10.train stored",
    )
    parser.add_argument(
        "--run",
        dest="record",
        metavar="FILE",
        help="for CIFAR-10: a file with the line of this run in runs.jsonl",
    )
    shared.add_output(parser, cards.FOLDER)
    shared.add_data(parser)
    shared.add_quick(parser)
    parser.set_defaults(run=shared.reported(_run))


def _run(arguments):
    for name in arguments.names:
        make = _cifar10 if name in CIFAR10 else _mnist
        model, test, classes, training = make(name, arguments)
        command = f"python -m research models {name}"
        if name in CIFAR10:
            command += " --weights FILE --run FILE"
        record = cards.store(
            arguments.output, name, model, test, classes, training, command
        )
        print(
            f"{name}: test accuracy {record['accuracy']:.4f}, "
            f"{record['bytes']:,} bytes",
            flush=True,
        )
    return 0


def _mnist(name, arguments):
    from research.models import mnist

    train, test = mnist.load(arguments.data_dir, arguments.quick)
    model, training = mnist.run(name, train, arguments.quick)
    return model, test, mnist.CLASSES, training


def _cifar10(name, arguments):
    from research.models import cifar10

    if not (arguments.weights and arguments.record):
        raise ValueError(
            f"`{name}` needs `--weights` and `--run`. "
            f"Received: --weights {arguments.weights} --run {arguments.record}"
        )
    model, training = cifar10.run(arguments.weights, arguments.record)
    return model, cifar10.load(arguments.data_dir), cifar10.CLASSES, training
