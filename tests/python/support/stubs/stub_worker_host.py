"""A host that runs workers for a remote agent: one process for each connection.

``python stub_worker_host.py ADDRESS`` prints its port. A client sends one line, the JSON of
``{"argv": [...], "env": {...}}``, and receives the exit code when the process has ended. Closing
the connection kills the process.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading


def serve(connection: socket.socket) -> None:
    with connection, connection.makefile("r") as lines:
        wanted = json.loads(lines.readline())
        process = subprocess.Popen(wanted["argv"], env=os.environ | wanted["env"])
        ended = os.pidfd_open(process.pid)
        ready, _, _ = select.select([ended, connection], [], [])
        os.close(ended)
        if ended not in ready:
            process.kill()
        connection.sendall(b"%d\n" % process.wait())


listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
