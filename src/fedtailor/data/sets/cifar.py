"""CIFAR-10 and CIFAR-100, from the python pickles.

A pickle can run code. These are read by an unpickler that can build arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.checksums import check_contents
from fedtailor.data.entry import Download, Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw, check_labels, join_official_parts, to_dataset

# images in one file
OFFICIAL_COUNTS = {
    "cifar10": (10_000,),
    "cifar100": (50_000, 10_000),
}
CIFAR10_LABELS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
FINE_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse
    mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
    porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television
    tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
COARSE_NAMES = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things
    large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals
    non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
"""
FINE_LABELS = tuple(FINE_NAMES.split())
COARSE_LABELS = tuple(COARSE_NAMES.split())

CIFAR10 = Entry(
    name="cifar10",
    title="CIFAR-10, small colour photographs",
    kind="image",
    shape=(3, 32, 32),
    classes=10,
    samples=60_000,
    source="Krizhevsky, technical report, Toronto 2009",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; cite the report",
    files=(
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    ),
    archive_folders=("cifar-10-batches-py",),
    downloads=(
        Download(
            file="cifar-10-python.tar.gz",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            checksum="md5:c58f30108f718f92721af3b95e74349a",
        ),
    ),
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    labels=CIFAR10_LABELS,
)
CIFAR100 = Entry(
    name="cifar100",
    title="CIFAR-100, small colour photographs with fine or coarse labels",
    kind="image",
    shape=(3, 32, 32),
    classes=100,
    samples=60_000,
    source="Krizhevsky, technical report, Toronto 2009",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; cite the report",
    files=("train", "test"),
    archive_folders=("cifar-100-python",),
    downloads=(
        Download(
            file="cifar-100-python.tar.gz",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    md5={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
    labels=FINE_LABELS,
    variants=("fine", "coarse"),
    overrides={"coarse": {"classes": 20, "labels": COARSE_LABELS}},
)
FAMILY = (CIFAR10, CIFAR100)


def parse_cifar10(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """CIFAR-10 from its six batches, of which the last is the test part."""
    batches = [
        _read_batch(paths[file], entry, file, ("labels",)) for file in entry.files
    ]
    *train, test = batches
    x = np.concatenate([images for images, _ in train])
    y = np.concatenate([labels for _, labels in train])
    x_test, y_test = test
    return Raw(join_official_parts((x, y), (x_test, y_test)))


def parse_cifar100(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """CIFAR-100 from its two pickles, with both kinds of labels."""
    keys = ("fine_labels", "coarse_labels")
    x, fine, coarse = _read_batch(paths["train"], entry, "train", keys)
    x_test, fine_test, coarse_test = _read_batch(paths["test"], entry, "test", keys)
    arrays = join_official_parts((x, fine), (x_test, fine_test))
    arrays["coarse"] = np.concatenate([coarse, coarse_test])
    return Raw(arrays)


def choose_labels(raw: Raw, entry: Entry) -> Dataset:
    """CIFAR-100 with the fine or the coarse labels."""
    if entry.variant == "fine":
        return to_dataset(raw, entry)
    coarse = raw.arrays.get("coarse")
    if coarse is None or coarse.shape != raw.arrays["y"].shape:
        raise UserError(
            "cifar100.npz has no 'coarse' of the length of 'y'; cifar100:coarse needs it"
        )
    check_labels(coarse, entry.classes, entry.short_name)
    return to_dataset(Raw(raw.arrays | {"y": coarse}, raw.labels), entry)


def _read_batch(
    path: Path, entry: Entry, file: str, keys: tuple[str, ...]
) -> tuple[Array, ...]:
    """The images of one pickle, and its labels under each of the keys."""
    content = path.read_bytes()
    batch = read_pickle(content, path)
    lacking = [key for key in ("data", *keys) if key not in batch]
    if lacking:
        raise UserError(
            f"{path} has no '{lacking[0]}'; is it the file of another data set?"
        )
    x = batch["data"]
    _check_images(x, path)
    complete = len(x) in OFFICIAL_COUNTS[entry.name]
    check_contents(content, file, path, entry, FAMILY, complete=complete)
    labels = [_read_labels(batch[key], key, len(x), path) for key in keys]
    return x.reshape(-1, 3, 32, 32), *labels


def _check_images(x: Any, path: Path) -> None:
    """Refuse what is not an array of bytes with 3072 a row."""
    if not isinstance(x, np.ndarray):
        found = type(x).__name__
    elif x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        found = f"{x.dtype} of shape {x.shape}"
    else:
        return
    raise UserError(f"{path}: 'data' is {found}, not bytes of shape (images, 3072)")


def _read_labels(values: Any, key: str, images: int, path: Path) -> Array:
    y = np.asarray(values)
    if y.shape != (images,) or y.dtype.kind not in "iu":
        raise UserError(
            f"{path}: '{key}' is not one whole number for each of the {images} images"
        )
    return y.astype(np.int64)


class Forbidden(Exception):
    """A pickle that asks for more than arrays."""


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old pickles; every other codec is refused."""
    if encoding != "latin1":
        raise Forbidden(f"codec '{encoding}'")
    return text.encode("latin1")


RECONSTRUCT = np.empty(0).__reduce__()[0]
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for dicts, lists, numbers, strings and arrays.

    Anything else is refused before it is run.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The few callables a CIFAR pickle needs."""
        if (module, name) not in ALLOWED:
            raise Forbidden(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """The dict in a CIFAR pickle."""
    try:
        found = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Forbidden as e:
        raise UserError(
            f"{path} is not a CIFAR pickle and may be malicious ({e}); nothing of it was run"
        ) from None
    except Exception as e:  # a damaged pickle can raise nearly everything
        raise UserError(
            f"{path} is truncated or damaged ({type(e).__name__}: {e}); fetch it again"
        ) from None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} holds a {type(found).__name__}, a CIFAR pickle holds a dict"
        )
    return {_decode_key(key): value for key, value in found.items()}


def _decode_key(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


LOADERS = (
    Loader(CIFAR10, parse_cifar10),
    Loader(CIFAR100, parse_cifar100, finish=choose_labels),
)
