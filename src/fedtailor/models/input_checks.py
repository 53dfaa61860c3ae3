"""What a network is asked to take and to give, and whether an architecture can."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from fedtailor.core.errors import UserError, unknown

SMALLEST_IMAGE = 4  # side, for ``cnn``
SHORTEST_SIGNAL = 28  # samples, for ``har_cnn``
AMAZON_COLUMNS = 5000  # words counted in the Amazon reviews


class Request(NamedTuple):
    """An architecture by name, its variants, and the task it is for."""

    name: str
    variants: tuple[str, ...]
    shape: tuple[int, ...]  # of one input
    classes: int
    vocabulary: int = 0  # number of different tokens, where the inputs are tokens
    norm: str = "batch"


def suggest(kind: str, shape: tuple[int, ...], vocabulary: int = 0) -> str:
    """The architecture for data of this kind and shape where none is asked for."""
    if kind == "text" or vocabulary:
        return "fasttext"
    if kind == "image":
        return "cnn" if len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE else "mlp"
    if kind == "signal":
        return "har_cnn" if len(shape) == 2 and shape[1] >= SHORTEST_SIGNAL else "mlp"
    if kind == "table":
        return "amazon_mlp" if tuple(shape) == (AMAZON_COLUMNS,) else "mlp"
    raise unknown("kind of data", kind, ("image", "signal", "table", "text"))


def refuse(request: Request, takes: str) -> NoReturn:
    """Say that the inputs do not fit, and which network would."""
    kind = {3: "image", 2: "signal"}.get(len(request.shape), "table")
    given = (
        f"token ids (vocabulary {request.vocabulary})"
        if request.vocabulary
        else f"inputs of shape {request.shape}"
    )
    better = suggest(kind, request.shape, request.vocabulary)
    raise UserError(f"model '{request.name}' takes {takes}, not {given}; use --model {better}")


def take_image(request: Request, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of an image that is large enough."""
    if request.vocabulary or len(request.shape) != 3 or min(request.shape[1:]) < smallest:
        refuse(
            request, f"images (channels, height, width) of at least {smallest}x{smallest} pixels"
        )
    channels, height, width = request.shape
    return channels, height, width


def take_signal(request: Request, shortest: int) -> tuple[int, int]:
    """Channels and length of a signal that is long enough."""
    if request.vocabulary or len(request.shape) != 2 or request.shape[1] < shortest:
        refuse(request, f"signals (channels, length) of at least {shortest} samples")
    channels, length = request.shape
    return channels, length


def take_table(request: Request) -> int:
    """The number of columns."""
    if request.vocabulary or len(request.shape) != 1:
        refuse(request, "tables (columns,)")
    return request.shape[0]


def take_numbers(request: Request) -> tuple[int, ...]:
    """The shape of anything but token ids."""
    if request.vocabulary:
        refuse(request, "numbers")
    return request.shape


def take_tokens(request: Request) -> int:
    """The size of the vocabulary."""
    if request.vocabulary < 1 or len(request.shape) != 1:
        refuse(request, "token ids (length,) with a vocabulary")
    return request.vocabulary


def take_no_variants(request: Request) -> None:
    """Refuse what stands after the colon of an architecture that has one form only."""
    if request.variants:
        raise UserError(f"model '{request.name}' has no variants: write '{request.name}' alone")


def take_width(request: Request, variant: str) -> int:
    """The layer width that a variant stands for."""
    if not (variant.isascii() and variant.isdigit() and int(variant) > 0):
        example = f"{request.name}:100"
        raise UserError(
            f"model '{request.name}' has no variant '{variant}': a layer width is a number, as in {example}"
        )
    return int(variant)
