"""The garbage collector, kept from stopping the loop."""

import gc


def spare_what_is_loaded() -> None:
    """Let the collector pass over all that there is now; to be called when the program is set up.

    It is 150,000 objects that stay to the end. A full collection, which comes every few scrapes, would look at each of
    them, and hold up weights and streams by 50 ms and more.
    """
    gc.collect()
    gc.freeze()
