"""Writes request_corpus/: one file for each distinct request of tests/data/tcpstore-vectors.json.

Each begins with the byte that selects how the fuzzer splits it, and with VALIDATE, as a connection.
"""

import json
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
VALIDATE = bytes.fromhex("00cef7853c")

vectors = json.loads((HERE.parents[1] / "data" / "tcpstore-vectors.json").read_text())["vectors"]
corpus = HERE / "request_corpus"
corpus.mkdir(exist_ok=True)
by_operation: dict[str, bytes] = {}
for vector in vectors:
    request = bytes.fromhex(vector["request"])
    prefix = b"" if vector.get("validate_sent_before") is False else VALIDATE
    by_operation.setdefault(vector["op"] + str(len(request).bit_length()), b"\7" + prefix + request)
for content in by_operation.values():
    (corpus / sha256(content).hexdigest()[:16]).write_bytes(content)
