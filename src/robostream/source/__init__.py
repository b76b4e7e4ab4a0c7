"""Where the bytes of a dataset come from: a local folder, the Hub, an object store, a web server.

`interface.py` is what the rest of the package sees. `roots.py` picks the source for a name. Each remote store only
makes single attempts (`hub.py` on `http.py`, `objects.py`, `generic.py`); `remote.py` adds retries (`retry.py`),
coalescing (`ranges.py`) and the disk cache.
"""

from robostream.source.interface import Source, Stat
from robostream.source.local import LocalSource
from robostream.source.retry import RetryPolicy
from robostream.source.roots import Access, Opened, open_source

__all__ = ["Access", "LocalSource", "Opened", "RetryPolicy", "Source", "Stat", "open_source"]
