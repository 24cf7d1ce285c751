"""Downloads from the Hugging Face hub. If the server cannot be reached, downloads fail at once instead of waiting."""

import contextlib
import logging
from collections.abc import Iterator

from linnaeus.errors import one_line

PROBE_SECONDS = 3
log = logging.getLogger("linnaeus")


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Return a context manager in which the Hugging Face client is offline if the hub does not answer a first request within 3 s.

    In offline mode only files that were downloaded before can be loaded. Without it the client would repeat its requests for a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    before = constants.HF_HUB_OFFLINE
    if not before:
        try:
            get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
        except Exception as error:  # the client and its exceptions depend on the version of the library
            log.info("%s does not respond (%s); only files that were downloaded before can be used", constants.ENDPOINT, one_line(error))
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
