"""A running process follows its policy file."""

import asyncio
import logging
from collections.abc import Callable

from trimtab.policy import Policy, PolicyError, PolicyFile

log = logging.getLogger(__name__)

_PERIOD_S = 1.0


async def follow(
    policy_file: PolicyFile, take: Callable[[Policy], None], refused: Callable[[], None] = lambda: None
) -> None:
    """Give `take` each new policy of the file, until cancelled.

    Of a bad one the log says why, `refused` hears, and the last good policy stays in force.
    """
    while True:
        await asyncio.sleep(_PERIOD_S)
        try:
            # Half a millisecond per endpoint: a large file must not hold up the loop.
            policy = await asyncio.to_thread(policy_file.poll)
            if policy is not None:
                take(policy)
        except PolicyError as error:
            for problem in error.problems:
                log.error("%s", problem)
            log.error("the policy file is not used; the last good policy stays in force")
            refused()
        except Exception:
            log.exception("a new policy was not taken in")
