"""Fashion-MNIST as numpy arrays, read from the four gzip files of Debian's dataset-fashion-mnist."""

import gzip
from pathlib import Path

import numpy as np

DEFAULT_FOLDER = Path("/usr/share/datasets/fashion-mnist")

PREFIXES = {"train": "train", "test": "t10k"}


def read(folder, split):
    """Pixels (N, 1, 28, 28) as u8 and labels (N) as i64 of the split "train" or "test"."""
    prefix = PREFIXES[split]
    pixels = _read_idx(Path(folder) / f"{prefix}-images-idx3-ubyte.gz", dimensions=3)
    labels = _read_idx(Path(folder) / f"{prefix}-labels-idx1-ubyte.gz", dimensions=1)
    if len(pixels) != len(labels):
        raise SystemExit(f"{folder}: {len(pixels)} {split} images, {len(labels)} labels")
    return pixels[:, None], labels.astype(np.int64)


def normalization(pixels):
    """(scale, offset) that give `pixels` mean 0 and standard deviation 1, as annulet's do."""
    counts = np.bincount(pixels.ravel(), minlength=256)
    values = np.arange(256)
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    return np.float32(1 / deviation), np.float32(-mean / deviation)


def normalize(pixels, scale, offset):
    """`pixel * scale + offset` in f32, each operation rounded."""
    return pixels.astype(np.float32) * np.float32(scale) + np.float32(offset)


def _read_idx(path, dimensions):
    """The u8 array of an IDX file: magic 0x0000_08dd, dd sizes as big-endian u32, the values."""
    try:
        with gzip.open(path) as file:
            data = file.read()
    except OSError as error:
        raise SystemExit(f"{path}: {error}; give the folder with --data") from error
    header = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, 8, dimensions]):
        raise SystemExit(f"{path}: not an IDX file of bytes with {dimensions} dimensions")
    shape = np.frombuffer(data, ">u4", count=dimensions, offset=4)
    values = np.frombuffer(data, np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=np.int64):
        raise SystemExit(f"{path}: {values.size} values, but its header says {shape.tolist()}")
    return values.reshape(shape)
