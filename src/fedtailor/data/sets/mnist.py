"""MNIST, Fashion-MNIST and EMNIST, from idx files, gzipped or plain."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.checksums import check_contents
from fedtailor.data.entry import Download, Entry
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw, join_official_parts

OFFICIAL_COUNTS = (60_000, 10_000)  # images of MNIST and Fashion-MNIST: training, test
DIGIT_LABELS = tuple("0123456789")
LETTER_LABELS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
# EMNIST merges the letters that look alike in both cases
BALANCED_LABELS = (*DIGIT_LABELS, *LETTER_LABELS, *"abdefghnqrt")
FASHION_LABELS = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _list_downloads(
    places: tuple[str, ...], md5: tuple[str, ...]
) -> tuple[Download, ...]:
    """The four files of MNIST or Fashion-MNIST, which have the same names."""
    downloads = []
    for file, digest in zip(MNIST_FILES, md5, strict=True):
        urls = tuple(place + file for place in places)
        downloads.append(Download(file, urls, f"md5:{digest}"))
    return tuple(downloads)


def _list_emnist_files(part: str) -> tuple[str, ...]:
    return (
        f"emnist-{part}-train-images-idx3-ubyte.gz",
        f"emnist-{part}-train-labels-idx1-ubyte.gz",
        f"emnist-{part}-test-images-idx3-ubyte.gz",
        f"emnist-{part}-test-labels-idx1-ubyte.gz",
    )


MNIST = Entry(
    name="mnist",
    title="MNIST, handwritten digits",
    kind="image",
    shape=(1, 28, 28),
    classes=10,
    samples=70_000,
    source="LeCun, Bottou, Bengio, Haffner, Proc. IEEE 1998",
    homepage="http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0",
    files=MNIST_FILES,
    downloads=_list_downloads(
        places=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        md5=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    labels=DIGIT_LABELS,
)
FASHION_MNIST = Entry(
    name="fashion_mnist",
    title="Fashion-MNIST, articles of clothing",
    kind="image",
    shape=(1, 28, 28),
    classes=10,
    samples=70_000,
    source="Xiao, Rasul, Vollgraf, arXiv:1708.07747",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    files=MNIST_FILES,
    downloads=_list_downloads(
        places=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        md5=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    md5={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    labels=FASHION_LABELS,
)
EMNIST = Entry(
    name="emnist",
    title="EMNIST, handwritten digits and letters (images turned upright)",
    kind="image",
    shape=(1, 28, 28),
    classes=10,
    samples=280_000,
    source="Cohen, Afshar, Tapson, van Schaik, IJCNN 2017",
    homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    licence="public domain (NIST)",
    archive_folders=("gzip",),
    downloads=(
        Download(
            file="gzip.zip",
            urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            checksum="md5:58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    ),
    variants=("digits", "letters", "balanced"),
    separate_files=True,
    overrides={
        "digits": {
            "files": _list_emnist_files("digits"),
            "labels": DIGIT_LABELS,
        },
        "letters": {
            "files": _list_emnist_files("letters"),
            "labels": LETTER_LABELS,
            "classes": 26,
            "samples": 145_600,
        },
        "balanced": {
            "files": _list_emnist_files("balanced"),
            "labels": BALANCED_LABELS,
            "classes": 47,
            "samples": 131_600,
        },
    },
)
FAMILY = (MNIST, FASHION_MNIST, EMNIST)


def parse_mnist(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """MNIST or Fashion-MNIST from its four files."""
    train_images, train_labels, test_images, test_labels = (
        paths[file] for file in entry.files
    )
    train = _read_part(train_images, train_labels, entry)
    test = _read_part(test_images, test_labels, entry)
    return Raw(join_official_parts(train, test))


def parse_emnist(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """EMNIST, whose files have rows and columns of the images exchanged, and letters from 1."""
    arrays = parse_mnist(paths, entry).arrays
    first_label = 1 if entry.variant == "letters" else 0
    upright = arrays["x"].swapaxes(2, 3)
    return Raw(arrays | {"x": upright, "y": arrays["y"] - first_label})


def _read_part(images: Path, labels: Path, entry: Entry) -> tuple[Array, Array]:
    """Images and labels of the training or of the test part."""
    x = _read_checked(images, 3, entry)
    y = _read_checked(labels, 1, entry)
    if len(x) != len(y):
        raise UserError(
            f"{images} holds {len(x)} images but {labels.name} {len(y)} labels; "
            "is one of another data set?"
        )
    if x.shape[1:] != (28, 28):
        raise UserError(
            f"{images}: images of {x.shape[1]} x {x.shape[2]} pixels, {entry.name} has 28 x 28"
        )
    return x[:, None], y


def _read_checked(path: Path, dimensions: int, entry: Entry) -> Array:
    """The array in an idx file, if the file is intact and of this data set."""
    array, content = read_idx(path, dimensions)
    file = path.name.removesuffix(".gz")
    complete = len(array) in OFFICIAL_COUNTS
    check_contents(content, file, path, entry, FAMILY, complete=complete)
    return array


def read_idx(path: Path, dimensions: int) -> tuple[Array, bytes]:
    """The array of bytes in an idx file, and the file's unpacked contents."""
    content = _read_unpacked(path)
    magic = content[:4]
    if len(magic) < 4 or magic[:3] != b"\0\0\x08":
        beginning = magic.hex() or "nothing"
        raise UserError(
            f"{path} is not an idx file of bytes: it begins with {beginning}"
        )
    header = 4 + 4 * dimensions
    if magic[3] != dimensions or len(content) < header:
        kinds = {1: "labels", 3: "images"}
        found = kinds.get(magic[3], f"{magic[3]} dimensions")
        raise UserError(
            f"{path} holds {found}, not {kinds[dimensions]}; has it been given another file's name?"
        )
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    expected = int(np.prod(shape, dtype=np.int64))
    actual = len(content) - header
    if actual != expected:
        state = "truncated" if actual < expected else "too long"
        size = " x ".join(map(str, shape))
        raise UserError(f"{path} is {state}: {actual} bytes for {size} values")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape), content


def _read_unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise UserError(
            f"{path} is truncated or damaged ({e}); fetch it again"
        ) from None


LOADERS = (
    Loader(MNIST, parse_mnist),
    Loader(FASHION_MNIST, parse_mnist),
    Loader(EMNIST, parse_emnist),
)
