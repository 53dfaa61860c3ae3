"""What a user can get wrong when asking for a network."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import UserError
from fedtailor.models import build, suggest_architecture

SHAPE = (3, 32, 32)


@pytest.mark.parametrize(
    ("spec", "shape", "vocabulary", "norm", "message"),
    [
        ("lenet", SHAPE, 0, "batch", "no model 'lenet'; did you mean lenet5"),
        ("zzz", SHAPE, 0, "batch", "no model 'zzz'; there are amazon_mlp, cnn,"),
        ("", SHAPE, 0, "batch", "no model ''; there are"),
        ("resnet32", SHAPE, 0, "bacth", "no norm 'bacth'; did you mean batch?"),
        ("cnn", SHAPE, 0, "layer", "no norm 'layer'"),
        ("cnn:32", SHAPE, 0, "batch", "model 'cnn' has no variants: write 'cnn' alone"),
        (
            "lenet5:x",
            SHAPE,
            0,
            "batch",
            "model 'lenet5' has no variant 'x': a layer width is a number, as in lenet5:100",
        ),
        (
            "lenet5:84,10",
            SHAPE,
            0,
            "batch",
            "has one variant, the second hidden layer's width, as in lenet5:84",
        ),
        ("mlp:0", SHAPE, 0, "batch", "model 'mlp' has no variant '0'"),
        ("mlp:", SHAPE, 0, "batch", "model 'mlp' has no variant ''"),
        ("mlp:-3", SHAPE, 0, "batch", "model 'mlp' has no variant '-3'"),
        (
            "resnet18:cifra",
            SHAPE,
            0,
            "batch",
            "no variant of resnet18 'cifra'; did you mean cifar?",
        ),
        (
            "resnet18:cifar,wide",
            SHAPE,
            0,
            "batch",
            "model 'resnet18' has no variant 'wide'",
        ),
        (
            "resnet18:cifar,50,3",
            SHAPE,
            0,
            "batch",
            "as in resnet18:cifar,50; '3' is too much",
        ),
        (
            "lenet5",
            (1, 8, 8),
            0,
            "batch",
            "of at least 16x16 pixels, not inputs of shape (1, 8, 8); use --model cnn",
        ),
        (
            "resnet18",
            (1, 8, 8),
            0,
            "batch",
            "model 'resnet18' takes images (channels, height, width) of at least 16x16",
        ),
        (
            "cnn",
            (1, 3, 3),
            0,
            "batch",
            "not inputs of shape (1, 3, 3); use --model mlp",
        ),
        (
            "cnn",
            (200,),
            98635,
            "batch",
            "not token ids (vocabulary 98635); use --model fasttext",
        ),
        (
            "mlp",
            (200,),
            98635,
            "batch",
            "model 'mlp' takes numbers, not token ids (vocabulary 98635)",
        ),
        (
            "convnet3",
            (9, 128),
            0,
            "batch",
            "not inputs of shape (9, 128); use --model har_cnn",
        ),
        (
            "har_cnn",
            SHAPE,
            0,
            "batch",
            "model 'har_cnn' takes signals (channels, length) of at least 28 samples, not",
        ),
        (
            "har_cnn",
            (9, 27),
            0,
            "batch",
            "not inputs of shape (9, 27); use --model mlp",
        ),
        (
            "amazon_mlp",
            SHAPE,
            0,
            "batch",
            "model 'amazon_mlp' takes tables (columns,), not inputs of shape (3, 32, 32)",
        ),
        (
            "fasttext",
            (13,),
            0,
            "batch",
            "takes token ids (length,) with a vocabulary, not inputs of shape (13,)",
        ),
    ],
)
def test_one_line_says_what_and_how_to_mend_it(
    spec: str, shape: tuple[int, ...], vocabulary: int, norm: str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        build(spec, shape, 10, vocabulary=vocabulary, norm=norm)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_kind_of_data_has_no_suggestion() -> None:
    with pytest.raises(
        UserError, match="no kind of data 'sound'; there are image, signal, table, text"
    ):
        suggest_architecture("sound", (1, 16000), 0)
