#!/usr/bin/env python3
"""PyTorch's side of the comparisons: eager training of LeNet-5 on Fashion-MNIST.

A step is a whole one: gather the batch, zero_grad, forward, backward, optimizer, loss.item().
Each subcommand prints JSON lines on stdout, flushed one by one; `compare.py` reads them.
"""

import time

STARTED = time.perf_counter()  # Before the imports: they are part of what a user waits for.

import argparse
import json
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import fashion_mnist
from lenet import LeNet


def main():
    arguments = parse_arguments()
    arguments.run(arguments)


class Training:
    """A model with its optimizer and the training set in memory."""

    def __init__(self, arguments, wrap=lambda model: model):
        torch.manual_seed(arguments.seed)
        pixels, labels = fashion_mnist.read(arguments.data, "train")
        self.normalization = fashion_mnist.normalization(pixels)
        self.images = torch.from_numpy(fashion_mnist.normalize(pixels, *self.normalization))
        self.labels = torch.from_numpy(labels)
        self.model = wrap(LeNet())
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=arguments.lr,
            momentum=0.9,
            weight_decay=arguments.weight_decay,
        )
        self.shuffle = torch.Generator().manual_seed(arguments.seed)

    def epoch_batches(self, batch):
        """Index tensors of one epoch in a new random order; the last may be short."""
        return torch.randperm(len(self.labels), generator=self.shuffle).split(batch)

    def batches_forever(self, batch):
        """Index tensors of whole batches, epoch after epoch."""
        while True:
            yield from (b for b in self.epoch_batches(batch) if len(b) == batch)

    def step(self, indices):
        """One whole training step; the mean loss of the batch."""
        images, labels = self.images[indices], self.labels[indices]
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def set_learning_rate(self, lr):
        for group in self.optimizer.param_groups:
            group["lr"] = lr


def throughput(arguments):
    """Images a second of one process, after a warm-up."""
    torch.set_num_threads(arguments.threads)
    training = Training(arguments)
    emit(
        mode="eager",
        threads=arguments.threads,
        **timed_steps(training, arguments.batch, arguments.warmup, arguments.steps),
    )


def timed_steps(training, batch, warmup, steps, before_timing=lambda: None):
    """Runs warm-up and timed steps over `batch` samples each; the figures."""
    batches = training.batches_forever(batch)
    losses = [training.step(next(batches))]
    first_step_s = time.perf_counter() - STARTED
    losses += [training.step(next(batches)) for _ in range(warmup - 1)]
    before_timing()
    began = time.perf_counter()
    losses += [training.step(next(batches)) for _ in range(steps)]
    before_timing()
    seconds = time.perf_counter() - began
    return {
        "batch": batch,
        "steps": steps,
        "first_step_s": first_step_s,
        "images_per_s": batch * steps / seconds,
        "step_ms": 1e3 * seconds / steps,
        "first_loss": losses[0],
        "last_loss": float(np.mean(losses[-10:])),
    }


def accuracy(arguments):
    """Accuracy on the test set after every epoch; the learning rate follows half a cosine."""
    torch.set_num_threads(arguments.threads)
    training = Training(arguments)
    pixels, labels = fashion_mnist.read(arguments.data, "test")
    images = torch.from_numpy(fashion_mnist.normalize(pixels, *training.normalization))
    labels = torch.from_numpy(labels)

    steps = arguments.epochs * math.ceil(len(training.labels) / arguments.batch)
    step, train_s = 0, 0.0
    for epoch in range(1, arguments.epochs + 1):
        began, loss_sum = time.perf_counter(), 0.0
        for indices in training.epoch_batches(arguments.batch):
            training.set_learning_rate(cosine(arguments.lr, step, steps))
            loss_sum += training.step(indices) * len(indices)
            step += 1
        train_s += time.perf_counter() - began
        emit(
            kind="epoch",
            seed=arguments.seed,
            epoch=epoch,
            train_loss=loss_sum / len(training.labels),
            test_accuracy=test_accuracy(training.model, images, labels),
            images_per_s=epoch * len(training.labels) / train_s,
            train_s=train_s,
            wall_s=time.perf_counter() - STARTED,
        )


def cosine(peak, step, steps):
    """The learning rate of step `step`, from 0; it would reach 0 at step `steps`."""
    return 0.5 * peak * (1 + math.cos(math.pi * step / steps))


@torch.no_grad()
def test_accuracy(model, images, labels):
    """Share of right answers, 0 to 1."""
    chunks = zip(images.split(1000), labels.split(1000))
    return sum((model(x).argmax(1) == y).sum().item() for x, y in chunks) / len(labels)


def ddp(arguments):
    """Images a second over all ranks of DistributedDataParallel over gloo."""
    if arguments.batch % arguments.ranks:
        raise SystemExit(f"--batch {arguments.batch}: must be a multiple of --ranks")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # What the ranks inherit; torch would otherwise start a pool a rank with a thread a core.
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        # A file to meet at needs no port that another process may have taken.
        rendezvous = f"file://{folder}/rendezvous"
        mp.spawn(ddp_rank, args=(arguments, rendezvous), nprocs=arguments.ranks)


def ddp_rank(rank, arguments, rendezvous):
    torch.set_num_threads(arguments.threads)
    ranks = arguments.ranks
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    try:
        # As DistributedSampler does: a rank keeps every n-th sample.
        training = Training(arguments, DistributedDataParallel)
        training.images = training.images[rank::ranks].contiguous()
        training.labels = training.labels[rank::ranks].contiguous()
        share = arguments.batch // ranks
        figures = timed_steps(training, share, arguments.warmup, arguments.steps, dist.barrier)
        if rank == 0:
            figures["images_per_s"] *= ranks
            figures["batch"] = arguments.batch
            emit(mode="ddp-gloo", ranks=ranks, threads=arguments.threads, **figures)
    finally:
        dist.destroy_process_group()


def emit(**fields):
    print(json.dumps({"peer": "torch", "version": torch.__version__, **fields}), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run, threads):
        sub = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        sub.set_defaults(run=run)
        sub.add_argument("--data", type=Path, default=fashion_mnist.DEFAULT_FOLDER)
        sub.add_argument("--batch", type=positive, default=128, help="samples of one update")
        sub.add_argument("--threads", type=positive, default=threads, help="of each process")
        sub.add_argument("--lr", type=float, default=0.05)
        sub.add_argument("--weight-decay", type=float, default=5e-4)
        sub.add_argument("--seed", type=int, default=0)
        return sub

    def timed(sub):
        sub.add_argument("--warmup", type=positive, default=20, help="steps before the clock")
        sub.add_argument("--steps", type=positive, default=469, help="timed steps")
        return sub

    timed(command(throughput, threads=2))
    command(accuracy, threads=2).add_argument("--epochs", type=positive, default=10)
    timed(command(ddp, threads=1)).add_argument("--ranks", type=positive, default=2)
    return parser.parse_args()


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


if __name__ == "__main__":
    main()
