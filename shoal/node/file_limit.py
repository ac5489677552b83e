"""How many files and connections this process may have open.

Does not do: ask for more than the system's hard limit.
"""

import resource


def raise_file_limit(most: int) -> int:
    """Raises the soft limit as far as it may be.

    Args:
        most: no higher than this.

    Returns:
        What may surely be had now, at most `most`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
