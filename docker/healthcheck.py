"""Whether a page of this container answers: `python healthcheck.py PORT PATH`; exit code 0 or 1."""

import http.client
import sys


def main() -> None:
    """The command line."""
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=4)
    try:
        connection.request("GET", sys.argv[2])
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"no answer: {error}")
    sys.exit(0 if status == http.client.OK else f"status {status}")


if __name__ == "__main__":
    main()
