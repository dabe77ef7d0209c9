#!/usr/bin/env python3
"""Loads an annulet checkpoint into PyTorch's LeNet and computes logits of the first test images.

With --model the weights-only file of the same run must load strictly, as it is, and hold the same
bits. With --logits the logits that annulet computed, a JSON list of N lists of 10 numbers in the
order of the test set, must agree with PyTorch's. Exit code 1 where something does not hold.
Without --write and --logits PyTorch's logits go to stdout.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

import fashion_mnist
from lenet import LeNet

OPTIMIZER_PREFIX = "optimizer."


def main():
    arguments = parse_arguments()
    metadata, tensors = read_safetensors(arguments.checkpoint)
    weights = {n: t for n, t in tensors.items() if not n.startswith(OPTIMIZER_PREFIX)}
    model = load(arguments.checkpoint, metadata, weights)
    note(
        f"{arguments.checkpoint}: {len(weights)} tensors, "
        f"{sum(t.numel() for t in weights.values())} parameters load with load_state_dict; "
        f"{len(tensors) - len(weights)} tensors of the optimizer"
    )
    if arguments.model:
        model_metadata, model_weights = read_safetensors(arguments.model)
        load(arguments.model, model_metadata, model_weights)
        check_equal_bits(arguments, weights, model_weights)
        note(f"{arguments.model}: loads as it is, the same bits")

    logits = compute_logits(model, metadata, arguments.data, arguments.count)
    if arguments.write:
        arguments.write.write_text(json.dumps(logits.tolist()) + "\n")
        note(f"{arguments.write}: {len(logits)} rows of logits")
    elif not arguments.logits:
        print(json.dumps(logits.tolist()))
    if arguments.logits:
        compare_logits(arguments, logits)


def read_safetensors(path):
    """The metadata and the named tensors of a file."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:
        fail(f"{path}: {error}")


def load(path, metadata, weights):
    """PyTorch's LeNet with exactly these weights."""
    if metadata.get("format") != "pt":
        fail(f"{path}: metadata 'format' is {metadata.get('format')!r}, PyTorch's tools want 'pt'")
    model = LeNet(classic=metadata.get("model") == "lenet5-classic")
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        fail(f"{path}: {error}")
    return model.eval()


def check_equal_bits(arguments, weights, model_weights):
    for name, tensor in weights.items():
        if not torch.equal(tensor.view(torch.int32), model_weights[name].view(torch.int32)):
            fail(f"{arguments.model}: {name} is not what {arguments.checkpoint} has")


@torch.no_grad()
def compute_logits(model, metadata, folder, count):
    """Logits (N, 10) of the first N test images, normalised as the metadata says."""
    pixels, labels = fashion_mnist.read(folder, "test")
    scale, offset = decode_normalization(metadata.get("normalization", ""))
    images = torch.from_numpy(fashion_mnist.normalize(pixels[:count], scale, offset))
    logits = model(images).numpy()
    right = int((logits.argmax(1) == labels[:count]).sum())
    note(f"PyTorch has {right} of the first {len(logits)} test images right")
    return logits


def decode_normalization(text):
    """Scale and offset from the bits of two f32, eight hexadecimal digits each."""
    words = text.split()
    try:
        scale, offset = (struct.unpack(">f", bytes.fromhex(word))[0] for word in words)
    except (ValueError, struct.error):
        fail(f"metadata 'normalization' is {text!r}, not two f32 as eight hexadecimal digits each")
    return scale, offset


def compare_logits(arguments, expected):
    try:
        found = np.array(json.loads(arguments.logits.read_text()), dtype=np.float64)
    except (OSError, ValueError) as error:
        fail(f"{arguments.logits}: {error}")
    if found.shape != expected.shape:
        fail(f"{arguments.logits}: shape {found.shape}, PyTorch's logits are {expected.shape}")
    difference = np.abs(found - expected).max()
    # The negation also catches NaN.
    if not difference <= arguments.tolerance:
        row, column = np.unravel_index(np.abs(found - expected).argmax(), found.shape)
        fail(
            f"{arguments.logits}: image {row}, class {column}: {found[row, column]} here, "
            f"{expected[row, column]} in PyTorch; more than {arguments.tolerance} apart"
        )
    note(f"{arguments.logits}: within {difference:.1e} of PyTorch's logits")


def note(text):
    """Findings go to stderr: stdout may carry the logits."""
    print(text, file=sys.stderr)


def fail(text):
    sys.exit(f"check_checkpoint.py: {text}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="checkpoint-STEP.safetensors")
    parser.add_argument("--model", type=Path, help="model.safetensors of the same run")
    parser.add_argument("--data", type=Path, default=fashion_mnist.DEFAULT_FOLDER)
    parser.add_argument("--count", type=int, default=100, help="test images [%(default)s]")
    parser.add_argument("--logits", type=Path, help="annulet's logits, JSON")
    parser.add_argument("--write", type=Path, help="file for PyTorch's logits, JSON")
    # Sums of at most 400 f32 products taken in another order, through five layers.
    parser.add_argument("--tolerance", type=float, default=1e-4, help="[%(default)s]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
