"""Networks as people have them: transformers, torchvision, timm, an LSTM; nothing is downloaded."""

import pytest
import torch
from torch import nn

import fedtailor
from fedtailor.data.federation import Dataset

pytestmark = pytest.mark.slow
OPTIONS = {"clients": 2, "partition": "iid", "rounds": 2, "lr": 0.01}
EXECUTORS = ("sequential", "auto")


def make_images(side: int) -> Dataset:
    x = torch.randint(0, 255, (40, 3, side, side), dtype=torch.uint8)
    return Dataset("pictures", "image", x, torch.arange(40) % 4, 4)


def make_tokens(length: int = 12) -> Dataset:
    x = torch.randint(0, 50, (40, length))
    return Dataset("tokens", "text", x, torch.arange(40) % 4, 4, vocabulary=50)


def check_repeats(data: Dataset, make, last: str) -> None:
    for executor in EXECUTORS:
        runs = []
        for _ in range(2):
            torch.manual_seed(0)
            net = make()
            torch.seed()  # nothing depends on torch's own numbers
            runs.append(
                fedtailor.run(
                    "fedper", data, net, last=last, executor=executor, **OPTIONS
                )
            )
        assert runs[0]["hash"] == runs[1]["hash"]
        assert runs[0]["lost"] == []


@pytest.fixture(scope="module")
def torchvision():
    """Its own operators cannot be loaded here: two are declared, so that its Python part works."""
    pytest.importorskip("numpy")
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(
            f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    return pytest.importorskip("torchvision")


def test_a_bert_built_from_a_config_with_its_dropout(torchvision):
    transformers = pytest.importorskip("transformers")

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.BertConfig(
                vocab_size=50,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                num_labels=4,
            )
            self.m = transformers.BertForSequenceClassification(config)

        def forward(self, x):
            return self.m(input_ids=x).logits

    check_repeats(make_tokens(), Bert, "m.classifier")


def test_a_language_model_with_tied_weights(torchvision):
    transformers = pytest.importorskip("transformers")

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            config = transformers.GPT2Config(
                vocab_size=50,
                n_positions=16,
                n_embd=16,
                n_layer=1,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
            )
            self.m = transformers.GPT2LMHeadModel(config)
            self.fc = nn.Linear(50, 4)

        def forward(self, x):
            return self.fc(self.m(input_ids=x).logits.mean(1))

    check_repeats(make_tokens(), Reader, "fc")


def test_a_resnet_of_torchvision(torchvision):
    check_repeats(
        make_images(32), lambda: torchvision.models.resnet18(num_classes=4), "fc"
    )


def test_a_vision_transformer_of_timm(torchvision):
    timm = pytest.importorskip("timm")

    def make():
        return timm.models.vision_transformer.VisionTransformer(
            img_size=16,
            patch_size=8,
            embed_dim=16,
            depth=2,
            num_heads=2,
            num_classes=4,
            drop_rate=0.1,
            attn_drop_rate=0.1,
            drop_path_rate=0.1,
        )

    check_repeats(make_images(16), make, "head")


def test_an_lstm():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
            self.drop = nn.Dropout(0.2)
            self.fc = nn.Linear(16, 4)

        def forward(self, x):
            found, _ = self.lstm(self.embed(x))
            return self.fc(self.drop(found[:, -1]))

    check_repeats(make_tokens(), Reader, "fc")
