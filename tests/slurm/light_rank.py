"""One of many ranks, as light as a process can be: it says where it is and takes part in a sum over all ranks.

The sum runs over TCP with the addresses that the launcher derived: every rank sends its number to rank 0, which answers each with the sum.
That is what torch's rendezvous asks of addresses and ports, without 64 imports of torch on a small machine.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path


def all_reduce(value: int) -> int:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(("", address[1]), backlog=world_size) as server:
            others = [server.accept()[0] for _ in range(world_size - 1)]
            total = value + sum(int(other.makefile().readline()) for other in others)
            for other in others:
                other.sendall(f"{total}\n".encode())
                other.close()
        return total
    while True:  # rank 0 may not listen yet
        try:
            with socket.create_connection(address, timeout=60) as connection:
                connection.sendall(f"{value}\n".encode())
                return int(connection.makefile().readline())
        except ConnectionRefusedError:
            time.sleep(0.1)


rank = int(os.environ["RANK"])
place = {
    "rank": rank,
    "local_rank": int(os.environ["LOCAL_RANK"]),
    "world_size": int(os.environ["WORLD_SIZE"]),
    "node": os.environ["SLURMD_NODENAME"],
    "host": socket.gethostname(),
    "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
    "master": os.environ["MASTER_ADDR"],
    "port": os.environ["MASTER_PORT"],
    "sum": all_reduce(rank),
}
Path(sys.argv[1], f"rank_{rank:03d}.json").write_text(json.dumps(place))
