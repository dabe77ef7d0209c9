#!/usr/bin/env python3
"""PyTorch's all-reduce over gloo on the loopback interface, timed as `annulet bench collective` times.

Before each iteration the ranks meet at a barrier; an iteration's time is the mean over the ranks.
One JSON line a size goes to stdout; every result is checked.
"""

import argparse
import json
import os
import socket
import time

os.environ["OMP_NUM_THREADS"] = "1"  # A rank is a process of one thread, as annulet's workers are.

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, nargs="+", default=[4, 246_824])
    parser.add_argument("--iters", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(rank_main, args=(port, arguments), nprocs=arguments.ranks)


def rank_main(rank, port, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=arguments.ranks)
    for size in arguments.bytes:
        times_us, wrong = measure(rank, size, arguments)
        mean = torch.tensor(times_us, dtype=torch.float64)
        dist.all_reduce(mean)
        faults = torch.tensor(wrong)
        dist.all_reduce(faults)
        if rank == 0:
            report = {
                "peer": "gloo",
                "version": torch.__version__,
                "ranks": arguments.ranks,
                "bytes": size,
                "wrong": int(faults),
                "times_us": (mean / arguments.ranks).tolist(),
            }
            print(json.dumps(report), flush=True)
    dist.destroy_process_group()


def measure(rank, size, arguments):
    """This rank's microseconds an iteration, and the number of elements that were wrong."""
    vector = torch.empty(size // 4)
    ranks = arguments.ranks
    times_us, wrong = [], 0
    for iteration in range(arguments.warmup + arguments.iters):
        # Small integers, so that sums of floats are exact in any order.
        vector.fill_(float(rank + iteration))
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(vector)
        took = time.perf_counter() - began
        expected = ranks * iteration + ranks * (ranks - 1) / 2
        wrong += int((vector != expected).sum())
        if iteration >= arguments.warmup:
            times_us.append(1e6 * took)
    return times_us, wrong


if __name__ == "__main__":
    main()
