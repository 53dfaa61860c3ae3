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


def suggest_architecture(kind: str, shape: tuple[int, ...], vocabulary: int = 0) -> str:
    """The default architecture for data of this kind and shape."""
    if kind == "text" or vocabulary:
        return "fasttext"
    if kind == "image":
        fits_cnn = len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE
        return "cnn" if fits_cnn else "mlp"
    if kind == "signal":
        fits_har_cnn = len(shape) == 2 and shape[1] >= SHORTEST_SIGNAL
        return "har_cnn" if fits_har_cnn else "mlp"
    if kind == "table":
        is_amazon = tuple(shape) == (AMAZON_COLUMNS,)
        return "amazon_mlp" if is_amazon else "mlp"
    raise unknown("kind of data", kind, ("image", "signal", "table", "text"))


def refuse_input(request: Request, takes: str) -> NoReturn:
    """Say that the inputs do not fit, and which network would."""
    kinds = {3: "image", 2: "signal"}
    kind = kinds.get(len(request.shape), "table")
    given = f"inputs of shape {request.shape}"
    if request.vocabulary:
        given = f"token ids (vocabulary {request.vocabulary})"
    better = suggest_architecture(kind, request.shape, request.vocabulary)
    raise UserError(
        f"model '{request.name}' takes {takes}, not {given}; use --model {better}"
    )


def require_image(request: Request, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of an image that is large enough."""
    is_image = not request.vocabulary and len(request.shape) == 3
    if not is_image or min(request.shape[1:]) < smallest:
        pixels = f"{smallest}x{smallest} pixels"
        refuse_input(request, f"images (channels, height, width) of at least {pixels}")
    channels, height, width = request.shape
    return channels, height, width


def require_signal(request: Request, shortest: int) -> tuple[int, int]:
    """Channels and length of a signal that is long enough."""
    is_signal = not request.vocabulary and len(request.shape) == 2
    if not is_signal or request.shape[1] < shortest:
        refuse_input(
            request, f"signals (channels, length) of at least {shortest} samples"
        )
    channels, length = request.shape
    return channels, length


def require_table(request: Request) -> int:
    """The number of columns of a table."""
    if request.vocabulary or len(request.shape) != 1:
        refuse_input(request, "tables (columns,)")
    return request.shape[0]


def require_numbers(request: Request) -> tuple[int, ...]:
    """The shape of anything but token ids."""
    if request.vocabulary:
        refuse_input(request, "numbers")
    return request.shape


def require_tokens(request: Request) -> int:
    """The size of the vocabulary of token ids."""
    if request.vocabulary < 1 or len(request.shape) != 1:
        refuse_input(request, "token ids (length,) with a vocabulary")
    return request.vocabulary


def refuse_variants(request: Request) -> None:
    """Refuse what stands after the colon of an architecture that has one form only."""
    if request.variants:
        raise UserError(
            f"model '{request.name}' has no variants: write '{request.name}' alone"
        )


def parse_width(request: Request, variant: str) -> int:
    """The layer width that a variant stands for."""
    is_number = variant.isascii() and variant.isdigit()
    if not is_number or int(variant) == 0:
        example = f"{request.name}:100"
        raise UserError(
            f"model '{request.name}' has no variant '{variant}':"
            f" a layer width is a number, as in {example}"
        )
    return int(variant)
