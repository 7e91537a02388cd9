"""A worker with torch: sums over all ranks; as rank 1 it fails in the first round; then it waits.

Usage: stub_gloo_node.py GO. Ends when the file GO exists.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.barrier()  # no rank leaves before all have read the sum
print(f"sum {int(total.item())} in round {os.environ['ELASTIC_ROUND']}", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os._exit(3)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
dist.destroy_process_group()
os._exit(0)  # a thread of gloo may still need the interpreter
