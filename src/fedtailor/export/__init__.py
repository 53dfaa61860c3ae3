"""A client's model out of the package: an ONNX file, a program of torch.export, or a folder."""

from fedtailor.export.exported_model import ExportedModel, is_model_folder, load_model
from fedtailor.export.write import check_target, export_model

__all__ = [
    "ExportedModel",
    "check_target",
    "export_model",
    "is_model_folder",
    "load_model",
]
