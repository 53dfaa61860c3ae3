"""Checksums of the official files, so that a damaged file or the file of another data set is told apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedtailor.core.errors import UserError

# MD5 of the contents (unpacked where a file is gzipped, for it may have been packed anew) by data set and file
OFFICIAL: dict[tuple[str, str], str] = {
    ("mnist", "train-images-idx3-ubyte"): "6bbc9ace898e44ae57da46a324031adb",
    ("mnist", "train-labels-idx1-ubyte"): "a25bea736e30d166cdddb491f175f624",
    ("mnist", "t10k-images-idx3-ubyte"): "2646ac647ad5339dbf082846283269ea",
    ("mnist", "t10k-labels-idx1-ubyte"): "27ae3e4e09519cfbb04c329615203637",
    ("fashion_mnist", "train-images-idx3-ubyte"): "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    ("fashion_mnist", "train-labels-idx1-ubyte"): "9018921c3c673c538a1fc5bad174d6f9",
    ("fashion_mnist", "t10k-images-idx3-ubyte"): "8181f5470baa50b63fa0f6fddb340f0a",
    ("fashion_mnist", "t10k-labels-idx1-ubyte"): "15d484375f8d13e6eb1aabb0c3f46965",
    ("cifar10", "data_batch_1"): "c99cafc152244af753f735de768cd75f",
    ("cifar10", "data_batch_2"): "d4bba439e000b95fd0a9bffe97cbabec",
    ("cifar10", "data_batch_3"): "54ebc095f3ab1f0389bbae665268c751",
    ("cifar10", "data_batch_4"): "634d18415352ddfa80567beed471001a",
    ("cifar10", "data_batch_5"): "482c414d41f54cd18b22e5b47cb7c3cb",
    ("cifar10", "test_batch"): "40351d587109b95175f43aff81a1287e",
    ("cifar100", "train"): "16019d7e3df5f24257cddd939b257f8d",
    ("cifar100", "test"): "f0ef6b0ae62326f3e7ffdfab6717acfc",
    ("ag_news", "train.csv"): "b1a00f826fdfbd249f79597b59e1dc12",
    ("ag_news", "test.csv"): "d52ea96a97a2d943681189a97654912d",
}
WHOSE = {digest: key for key, digest in OFFICIAL.items()}


def verify(content: bytes, name: str, file: str, path: Path, *, complete: bool) -> None:
    """Refuse contents that are known to be another file's, or that are as many as the official ones but not they.

    A file with fewer samples than the official one is taken for a chosen part of it.
    """
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    whose = WHOSE.get(digest, (name, file))
    if whose != (name, file):
        raise UserError(
            f"{path} is '{whose[1]}' of {whose[0]}, not '{file}' of {name}; put the right file there"
        )
    official = OFFICIAL.get((name, file), digest)
    if complete and digest != official:
        raise UserError(
            f"{path} is damaged: its MD5 is {digest}, the official one {official}; "
            f"remove it and run 'fedtailor datasets fetch {name}'"
        )
