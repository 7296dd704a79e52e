"""Trained policies for those who have no Headrace: ONNX files, contracts and model cards, checked against the checkpoint."""
