"""Servers that datasets are streamed from in tests and benchmarks: on loopback, each in its own process.

    http.py         a small threaded HTTP/1.1 server; what the file server and the Hub are made of
    files.py        a folder over HTTP: ranges, HEAD, ETag, If-Match, Basic and Bearer credentials
    hub.py          what the Hub's API answers, for the real `huggingface_hub` client; signed URLs on a second host
    hub_state.py    the repositories, commits and buckets behind it
    s3.py           SeaweedFS as an S3 store
    proxy.py        stands before any of these: latency, bandwidth, faults, and a record of every request
    faults.py       the ways in which the proxy fails a request
    process.py      runs one of them as a process of its own and calls its methods
    fixtures.py     the pytest fixtures

`ServerProcess("files", folder=...)` and its like start one: `.url`, and the server's methods.
"""
