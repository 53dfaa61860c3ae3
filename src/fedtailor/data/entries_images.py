"""Image sets without owners: facts, files and official places."""

from __future__ import annotations

from fedtailor.data import labels
from fedtailor.data.entry import Download, Entry

IDX = tuple(f"{p}-{k}-ubyte.gz" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))


def _idx(digests: tuple[str, ...], *places: str) -> tuple[Download, ...]:
    """The four files of the MNIST family have the same names in every set."""
    return tuple(
        Download(f, tuple(p + f for p in places), f"md5:{d}")
        for f, d in zip(IDX, digests, strict=True)
    )


def _emnist(part: str) -> tuple[str, ...]:
    return tuple(
        f"emnist-{part}-{p}-{k}-ubyte.gz"
        for p in ("train", "test")
        for k in ("images-idx3", "labels-idx1")
    )


DIGITS = Entry(
    "digits",
    "Optical recognition of handwritten digits, embedded in scikit-learn: always there",
    kind="image",
    shape=(1, 8, 8),
    classes=10,
    samples=1797,
    source="Alpaydin, Kaynak, UCI 1998",
    home="https://archive.ics.uci.edu/dataset/80",
    licence="CC BY 4.0",
    labels=labels.DIGITS,
)
MNIST = Entry(
    "mnist",
    "MNIST, handwritten digits",
    kind="image",
    shape=(1, 28, 28),
    classes=10,
    samples=70_000,
    source="LeCun, Bottou, Bengio, Haffner, Proc. IEEE 1998",
    home="http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0",
    files=IDX,
    downloads=_idx(
        (
            *("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
            *("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        *("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    ),
    labels=labels.DIGITS,
)
FASHION_MNIST = Entry(
    "fashion_mnist",
    "Fashion-MNIST, articles of clothing",
    kind="image",
    shape=(1, 28, 28),
    classes=10,
    samples=70_000,
    source="Xiao, Rasul, Vollgraf, arXiv:1708.07747",
    home="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    files=IDX,
    downloads=_idx(
        (
            *("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"),
            *("bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    labels=labels.FASHION,
)
EMNIST = Entry(
    "emnist",
    "EMNIST, handwritten digits and letters (images turned upright)",
    kind="image",
    shape=(1, 28, 28),
    classes=10,
    samples=280_000,
    source="Cohen, Afshar, Tapson, van Schaik, IJCNN 2017",
    home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    licence="public domain (NIST)",
    inside=("gzip",),
    downloads=(
        Download(
            "gzip.zip",
            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    ),
    variants=("digits", "letters", "balanced"),
    apart=True,
    differs={
        "digits": {"files": _emnist("digits"), "labels": labels.DIGITS},
        "letters": {
            "files": _emnist("letters"),
            "labels": labels.LETTERS,
            "classes": 26,
            "samples": 145_600,
        },
        "balanced": {
            "files": _emnist("balanced"),
            "labels": labels.BALANCED,
            "classes": 47,
            "samples": 131_600,
        },
    },
)
CIFAR10 = Entry(
    "cifar10",
    "CIFAR-10, small colour photographs",
    kind="image",
    shape=(3, 32, 32),
    classes=10,
    samples=60_000,
    source="Krizhevsky, technical report, Toronto 2009",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; cite the report",
    files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    inside=("cifar-10-batches-py",),
    downloads=(
        Download(
            "cifar-10-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            "md5:c58f30108f718f92721af3b95e74349a",
        ),
    ),
    labels=labels.CIFAR10,
)
CIFAR100 = Entry(
    "cifar100",
    "CIFAR-100, small colour photographs with fine or coarse labels",
    kind="image",
    shape=(3, 32, 32),
    classes=100,
    samples=60_000,
    source="Krizhevsky, technical report, Toronto 2009",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; cite the report",
    files=("train", "test"),
    inside=("cifar-100-python",),
    downloads=(
        Download(
            "cifar-100-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    labels=labels.CIFAR100,
    variants=("fine", "coarse"),
    differs={"coarse": {"classes": 20, "labels": labels.CIFAR100_COARSE}},
)
TINY_IMAGENET = Entry(
    "tiny_imagenet",
    "Tiny-ImageNet-200; the official validation images are the test part",
    kind="image",
    shape=(3, 64, 64),
    classes=200,
    samples=110_000,
    source="Le, Yang, CS231N, Stanford 2015",
    home="http://cs231n.stanford.edu",
    licence="ImageNet terms: non-commercial research",
    files=("train", "val/val_annotations.txt", "val/images"),
    optional=("words.txt",),
    inside=("tiny-imagenet-200",),
    downloads=(
        Download(
            "tiny-imagenet-200.zip",
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
)

IMAGES = (DIGITS, MNIST, FASHION_MNIST, EMNIST, CIFAR10, CIFAR100, TINY_IMAGENET)
